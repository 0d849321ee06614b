use bub_kernel::tool;

struct Opaque;

/// Gives what nobody can read.
#[tool(crate = bub_kernel)]
async fn give() -> Opaque {
    Opaque
}

fn main() {}
