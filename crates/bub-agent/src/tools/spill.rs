//! Reading what was put aside.

use bub_kernel::{Error, Result, ToolContext, tool};

use crate::spill::{self, ChunkRange};

/// At most so many chunks at once, so that reading needs no putting aside again.
const MAX_CHUNKS_PER_READ: i64 = 4;

/// Reads tool output that was too long to show. Follow `next_cursor` until `complete` is true, or read from the end.
#[tool(crate = bub_kernel, name = "spill.read", read_only)]
pub(crate) async fn spill_read(
    context: &ToolContext,
    /// The handle from the message that says the output was spilled.
    handle: String,
    /// The first chunk to read, counted from 0.
    #[default(0)]
    cursor: i64,
    /// How many chunks to read, at most 4.
    #[default(1)]
    count: i64,
    /// Count chunks from the end.
    #[default(false)]
    from_end: bool,
) -> Result<String> {
    let Ok(cursor) = usize::try_from(cursor) else {
        return Err(Error::invalid_input("`cursor` must be >= 0."));
    };
    if count < 1 {
        return Err(Error::invalid_input("`count` must be >= 1."));
    }
    let count = usize::try_from(count.min(MAX_CHUNKS_PER_READ)).unwrap_or(1);
    spill::read(
        context.tape(),
        handle.trim(),
        &ChunkRange {
            cursor,
            count,
            from_end,
        },
    )
    .await
}
