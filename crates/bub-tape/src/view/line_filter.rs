//! The line filter for views with the default mapping.

use std::ops::Range;

use memchr::memmem;

use super::TOOL_DONE_EVENT;
use crate::{LineFilter, query::lines};

/// Skips system prompts, errors, and events other than `tool.done`. They are half of a tape and not part of a view.
#[derive(Debug)]
pub(super) struct ViewLineFilter;

impl LineFilter for ViewLineFilter {
    fn filter(&self, text: &[u8], keep: &mut Vec<Range<usize>>) {
        let tool_done = memmem::Finder::new(TOOL_DONE_EVENT);
        let escape = memmem::Finder::new("\\u");
        let is_relevant = |line: &Range<usize>| {
            let line = text.get(line.clone()).unwrap_or_default();
            match lines::line_kind(line) {
                Some(b"anchor" | b"message" | b"tool_call" | b"tool_result") | None => true,
                // The event name may be written with escapes `\uXXXX`.
                Some(b"event") => tool_done.find(line).is_some() || escape.find(line).is_some(),
                Some(_) => false,
            }
        };
        keep.extend(lines::line_ranges(text).filter(is_relevant));
    }
}
