//! Spills large tool output to a sidecar. The model gets a preview and a handle to read the rest.

use bub_kernel::{Result, TurnTape, tape_error};
use bub_settings::Settings;
use bub_tape::{AnchorQuery, Entry, EntryKind, EntryRange, Tape};
use serde_json::{Value, json};

use crate::settings::SpillSettings;

/// The name of the sidecar with spilled output.
pub(crate) const SPILL_SIDECAR: &str = "spill";
/// The name of the tool that reads spilled output. The output of this tool is never spilled.
pub(crate) const SPILL_READ_TOOL: &str = "spill.read";

const CHUNK_BYTES: usize = 16_384;
const PREVIEW_CHARS: usize = 600;
/// Characters per token. The setting `spill.threshold` counts tokens.
const CHARS_PER_TOKEN: u64 = 4;

/// Returns whether a text is below the setting `spill.threshold`, so that it need not be spilled.
pub(crate) fn fits_threshold(settings: &Settings, text: &str) -> bool {
    let threshold = settings
        .get(SpillSettings::THRESHOLD)
        .saturating_mul(CHARS_PER_TOKEN);
    threshold == 0 || (text.len() as u64) < threshold || (text.chars().count() as u64) < threshold
}

/// Returns the text if it is small enough. Otherwise stores it in the sidecar and returns a preview with a handle.
pub(crate) async fn spill(
    turn: &TurnTape,
    settings: &Settings,
    tool: &str,
    text: String,
) -> String {
    if tool == SPILL_READ_TOOL || fits_threshold(settings, &text) {
        return text;
    }
    // The same output has the same handle, so that a replay sees the same result.
    let handle = format!("{:032x}", crate::content_bits(&text));
    let chunks = split_chunks(&text);
    let stored = store_chunks(turn, &handle, &chunks, &text, tool).await;
    let bytes = text.len();
    let data = match &stored {
        Ok(()) => {
            json!({"status": "ok", "handle": handle, "bytes": bytes, "chunks": chunks.len(), "tool": tool})
        }
        Err(error) => {
            json!({"status": "error", "handle": handle, "bytes": bytes, "error": error.message(), "tool": tool})
        }
    };
    turn.append_later(
        turn.with_run_id(Entry::event("spill.write", Some(data)).exclude_from_context()),
    );
    let (bytes, preview) = (group_digits(bytes), build_preview(&text));
    match stored {
        Ok(()) => format!(
            "[tool output spilled: {bytes} bytes in {} chunks; handle: {handle}]\n[read with: \
             spill_read(handle='{handle}', cursor=0, count=1, from_end=False)]\n{preview}",
            chunks.len()
        ),
        Err(error) => {
            tracing::warn!(tool, %error, "spill.failed");
            format!("[tool output truncated: {bytes} bytes; spill storage failed]\n{preview}")
        }
    }
}

/// Writes the chunks of an output to the sidecar, and a manifest with their number and total size, in one batch.
async fn store_chunks(
    turn: &TurnTape,
    handle: &str,
    chunks: &[&str],
    text: &str,
    tool: &str,
) -> Result<()> {
    let sidecar = turn.tape().sidecar(SPILL_SIDECAR).map_err(tape_error)?;
    let mut batch = Vec::with_capacity(chunks.len() * 2 + 3);
    for (index, chunk) in chunks.iter().enumerate() {
        batch.push(Entry::anchor(&chunk_anchor(handle, index), None));
        batch.push(
            Entry::tool_result(vec![Value::from(*chunk)])
                .with_meta("spill_handle", handle)
                .with_meta("spill_chunk", index),
        );
    }
    let data = json!({
        "handle": handle,
        "chunks": chunks.len(),
        "bytes": text.len(),
        "chars": text.chars().count(),
        "lines": text.lines().count(),
        "tool": tool,
    });
    batch.push(Entry::anchor(&manifest_anchor(handle), None));
    batch.push(
        turn.with_run_id(
            Entry::event("spill.manifest", Some(data)).with_meta("spill_handle", handle),
        ),
    );
    sidecar.append_all(batch).await.map_err(tape_error)?;
    Ok(())
}

/// Returns `count` chunks of spilled output as the result text of the tool `spill.read`. `cursor` counts chunks from the
/// start, or with `from_end` from the end.
pub(crate) async fn read_chunks(
    tape: &Tape,
    handle: &str,
    cursor: usize,
    count: usize,
    from_end: bool,
) -> Result<String> {
    let Ok(sidecar) = tape.sidecar(SPILL_SIDECAR) else {
        return Ok(
            "[spilled tool results are unavailable: the tape has no spill sidecar]".to_owned(),
        );
    };
    let Some(manifest) = entry_after_anchor(&sidecar, &manifest_anchor(handle)).await? else {
        return Ok(format!("[no spilled tool result for handle '{handle}']"));
    };
    let number = |name: &str| {
        let value = manifest.data().and_then(|data| data.get(name)?.as_u64());
        usize::try_from(value.unwrap_or(0)).unwrap_or(usize::MAX)
    };
    let (total, bytes) = (number("chunks"), number("bytes"));
    let first = cursor.min(total);
    let last = first.saturating_add(count).min(total);
    // The chunks of a range that counts from the end are still returned in forward order.
    let (start, end) = if from_end {
        (total - last, total - first)
    } else {
        (first, last)
    };
    let mut content = String::new();
    for index in start..end {
        let chunk = entry_after_anchor(&sidecar, &chunk_anchor(handle, index)).await?;
        let text = chunk
            .as_ref()
            .filter(|entry| entry.kind == EntryKind::ToolResult)
            .and_then(|entry| entry.payload.get("results")?.as_array()?.first()?.as_str());
        let Some(text) = text else {
            return Ok(format!(
                "[incomplete spilled tool result: chunk {index} of handle '{handle}' is missing]"
            ));
        };
        content.push_str(text);
    }
    let range = if start < end {
        format!("{start}-{}", end - 1)
    } else {
        "none".to_owned()
    };
    Ok(format!(
        "[spilled tool result: {} bytes, {total} chunks]\nchunks: {range}\nnext_cursor: {last}\ncomplete: \
         {}\ncontent:\n{content}",
        group_digits(bytes),
        last >= total
    ))
}

/// Returns the entry that follows the latest anchor with this name.
async fn entry_after_anchor(sidecar: &Tape, name: &str) -> Result<Option<Entry>> {
    let latest = AnchorQuery::LatestNamed(name.to_owned());
    let mut marks = sidecar.anchor_marks(latest).await.map_err(tape_error)?;
    let Some(mark) = marks.pop() else {
        return Ok(None);
    };
    let after = EntryRange::after(mark.position);
    sidecar.first_entry(after).await.map_err(tape_error)
}

fn chunk_anchor(handle: &str, index: usize) -> String {
    format!("spill/{handle}/chunk/{index}")
}

fn manifest_anchor(handle: &str) -> String {
    format!("spill/{handle}/manifest")
}

/// Splits a text into chunks of at most `CHUNK_BYTES`, at character boundaries.
fn split_chunks(text: &str) -> Vec<&str> {
    let mut rest = text;
    std::iter::from_fn(|| {
        let (chunk, after) = rest.split_at(rest.floor_char_boundary(CHUNK_BYTES));
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
    .collect()
}

/// Returns the beginning and the end of a long text, with a note about the omitted part.
fn build_preview(text: &str) -> String {
    let total = text.chars().count();
    if total <= PREVIEW_CHARS {
        return text.to_owned();
    }
    let half = PREVIEW_CHARS / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(total - half).collect();
    format!(
        "{head}\n...[{} chars omitted]...\n{tail}",
        group_digits(total - 2 * half)
    )
}

/// Formats a number with commas between thousands.
fn group_digits(number: usize) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", group_digits(number / 1000), number % 1000)
}
