use bub_kernel::tool;

/// Shouts.
#[tool(crate = bub_kernel, readonly)]
async fn shout(text: String) -> String {
    text.to_uppercase()
}

fn main() {}
