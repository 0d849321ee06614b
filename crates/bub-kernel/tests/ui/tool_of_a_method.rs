use bub_kernel::tool;

/// Shouts.
#[tool(crate = bub_kernel)]
async fn shout(&self, text: String) -> String {
    text.to_uppercase()
}

fn main() {}
