use bub_kernel::tool;

struct Opaque;

/// Returns a value that is not serializable.
#[tool(crate = bub_kernel)]
async fn give() -> Opaque {
    Opaque
}

fn main() {}
