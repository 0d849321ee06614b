use bub_kernel::tool;

/// Shouts.
#[tool(crate = bub_kernel)]
async fn shout(text: &str) -> String {
    text.to_uppercase()
}

fn main() {}
