//! Decoding speed.
fn main() {
    divan::main();
}
