//! Sets the cfg `fixtures` if the data for the tests is available.

#[expect(clippy::disallowed_methods, reason = "the variable is no setting")]
fn main() {
    println!("cargo::rustc-check-cfg=cfg(fixtures)");
    println!("cargo::rerun-if-env-changed=BUB_FIXTURES");
    if std::env::var_os("BUB_FIXTURES").is_some() {
        println!("cargo::rustc-cfg=fixtures");
    }
}
