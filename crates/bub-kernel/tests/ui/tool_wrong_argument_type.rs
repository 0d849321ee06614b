use bub_kernel::tool;

/// Waits.
#[tool(crate = bub_kernel)]
async fn wait(time: std::time::Duration) {
    drop(time);
}

fn main() {}
