use bub_kernel::tool;

/// Shouts.
#[tool(crate = bub_kernel, name = "shout it")]
async fn shout(text: String) -> String {
    text.to_uppercase()
}

fn main() {}
