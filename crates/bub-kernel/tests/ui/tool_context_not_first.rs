use bub_kernel::{ToolContext, tool};

/// Shouts.
#[tool(crate = bub_kernel)]
async fn shout(text: String, context: &ToolContext) -> String {
    format!("{text}{}", context.run_id())
}

fn main() {}
