use bub_kernel::tool;

/// Counts.
#[tool(crate = bub_kernel)]
async fn count(#[default(true)] from: i64) -> i64 {
    from
}

fn main() {}
