//! Folding lines into a summary without building entries that nobody will look at.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{AnchorMark, EntryId, Position, TapeSummary, codec};

/// The outside of a line. What it accepts, the full decoder accepts too; what it refuses is given to that one.
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

#[derive(Deserialize)]
struct NamedPayload<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// Adds one line to a summary; returns the mark when it is an anchor. Lines that are no entries count for nothing.
pub(crate) fn observe(summary: &mut TapeSummary, line: &[u8], position: u64) -> Option<AnchorMark> {
    if let Some(head) = head(line) {
        let name = event_name(&head);
        if !summary.wants(&head.kind, name.as_deref()) {
            summary.count(EntryId::new(head.id), &head.date);
            return None;
        }
    }
    summary.observe(&codec::decode(line)?, Position::new(position))
}

fn head(line: &[u8]) -> Option<LineHead<'_>> {
    // Checked as a whole: the parser does not look into strings that it skips.
    let head: LineHead<'_> = serde_json::from_str(std::str::from_utf8(line).ok()?).ok()?;
    head.payload.get().starts_with('{').then_some(head)
}

fn event_name<'a>(head: &LineHead<'a>) -> Option<Cow<'a, str>> {
    if head.kind != "event" {
        return None;
    }
    // Every writer puts the name first; taking it from there spares a second pass over the payload.
    let rest = head.payload.get().strip_prefix("{\"name\": \"")?;
    let name = rest
        .split_once('"')
        .map(|(name, _)| name)
        .filter(|name| !name.contains('\\'));
    match name {
        Some(name) => Some(Cow::Borrowed(name)),
        None => serde_json::from_str::<NamedPayload<'a>>(head.payload.get())
            .ok()
            .map(|named| named.name),
    }
}
