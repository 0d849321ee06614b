//! Adds lines to a summary, decoding only the entries that the summary needs.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{AnchorMark, EntryId, Position, TapeSummary, codec};

/// The top-level fields of a line, parsed without decoding the payload. [`codec::decode`] accepts every line that
/// [`parse_line_head`] accepts. Lines that [`parse_line_head`] rejects are passed to [`codec::decode`].
#[derive(Deserialize)]
struct LineHead<'a> {
    id: i64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow)]
    date: Cow<'a, str>,
}

/// Adds one line to a summary. Returns a mark if the line is an anchor. Ignores lines that are not entries.
pub(crate) fn observe_line(
    summary: &mut TapeSummary,
    line: &[u8],
    position: u64,
) -> Option<AnchorMark> {
    if let Some(head) = parse_line_head(line) {
        let name = event_name(&head);
        if !summary.needs_entry(&head.kind, name) {
            summary.update_counts(EntryId::new(head.id), &head.date);
            return None;
        }
    }
    summary.observe(&codec::decode(line)?, Position::new(position))
}

fn parse_line_head(line: &[u8]) -> Option<LineHead<'_>> {
    // Validate the complete line as UTF-8, because the parser does not validate strings that it skips.
    let head: LineHead<'_> = serde_json::from_str(std::str::from_utf8(line).ok()?).ok()?;
    head.payload.get().starts_with('{').then_some(head)
}

/// Returns the name of an event, if the payload starts with it, as all writers write it.
fn event_name<'a>(head: &LineHead<'a>) -> Option<&'a str> {
    let rest = head.payload.get().strip_prefix("{\"name\": \"")?;
    let (name, _) = rest.split_once('"')?;
    (head.kind == "event" && !name.contains('\\')).then_some(name)
}
