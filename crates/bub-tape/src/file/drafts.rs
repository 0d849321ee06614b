//! Stores the draft of each tape in a file under `.bub/drafts/`.

use std::path::PathBuf;

use super::context::{IoResultExt as _, StoreContext};
use crate::{MAX_DRAFT_BYTES, Result, TapeName, fs::OpenMode};

impl StoreContext {
    fn draft_path(&self, tape: &TapeName) -> PathBuf {
        self.paths.draft_file(tape)
    }

    /// Appends text to a draft, up to the maximum size. Does not sync: a draft only has to survive the end of the
    /// process.
    pub(crate) fn append_draft(&self, tape: &TapeName, text: &str) -> Result<()> {
        let path = self.draft_path(tape);
        let file = self.open_for_writing(&path, OpenMode::Write)?;
        let size = file.stat().describe("inspect", &path)?.size;
        let free = MAX_DRAFT_BYTES.saturating_sub(super::context::length_to_usize(size));
        let end = text.floor_char_boundary(free);
        let bytes = text.as_bytes().get(..end).unwrap_or_default();
        file.write_all_at(bytes, size).describe("write", &path)
    }

    /// Returns a draft, or `None` if the tape has none. A character that was not written completely is omitted.
    pub(crate) fn read_draft(&self, tape: &TapeName) -> Result<Option<String>> {
        let bytes = self.read_file(&self.draft_path(tape))?;
        Ok(bytes.map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            text.trim_end_matches(char::REPLACEMENT_CHARACTER)
                .to_owned()
        }))
    }

    /// Removes a draft.
    pub(crate) fn discard_draft(&self, tape: &TapeName) -> Result<()> {
        self.remove_file(&self.draft_path(tape))
    }
}
