use bub_kernel::tool;

#[tool(crate = bub_kernel)]
async fn shout(text: String) -> String {
    text.to_uppercase()
}

fn main() {}
