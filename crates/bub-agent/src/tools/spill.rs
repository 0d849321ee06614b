//! The tool `spill.read`.

use bub_kernel::{Error, Result, ToolContext, tool};

use crate::spill;

/// Maximum number of chunks per call. It limits the result, because the output of `spill.read` is never spilled.
const MAX_CHUNKS_PER_READ: i64 = 4;

/// Read chunks of tool output that was too large to show
#[tool(crate = bub_kernel, name = "spill.read", read_only, direct)]
pub(crate) async fn spill_read(
    context: &ToolContext,
    handle: String,
    /// First chunk; `next_cursor` of the last call continues
    #[default(0)]
    cursor: i64,
    /// At most 4
    #[default(1)]
    count: i64,
    #[default(false)] from_end: bool,
) -> Result<String> {
    let Ok(cursor) = usize::try_from(cursor) else {
        return Err(Error::invalid_input("invalid `cursor`: expected 0 or more"));
    };
    if count < 1 {
        return Err(Error::invalid_input("invalid `count`: expected 1 or more"));
    }
    let count = usize::try_from(count.min(MAX_CHUNKS_PER_READ)).unwrap_or(1);
    spill::read_chunks(context.tape(), handle.trim(), cursor, count, from_end).await
}
