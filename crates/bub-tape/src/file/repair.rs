//! Repairs a damaged tape on request. Removed bytes are kept in a separate file, and events on the tape report them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    FileStore,
    chain::{self, ChainHead, hash_text},
    context::IoResultExt as _,
    replace::NewContent,
    tape_file::{TapeFile, TapeLock, WritableTape},
    verify,
};
use crate::{
    Damage, Entry, EntryId, LeaseWait, Result, TapeName, TapeStore as _, codec, fs::OpenMode,
};

/// Name of the event that records a repair.
pub(crate) const REPAIRED_EVENT: &str = "tape.repaired";
/// Field of the event with the hashes of the entries before which lines were removed.
pub(crate) const GAPS_FIELD: &str = "chain_gaps";

/// The result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// One line of text per repair.
    pub done: Vec<String>,
    /// Files with the removed bytes.
    pub kept: Vec<PathBuf>,
}

impl FileStore {
    /// Repairs a tape: removes an incomplete last line and invalid lines, and rebuilds a wrong index. Accepts damage
    /// that only rewriting history could repair, and appends an event that records this.
    ///
    /// # Errors
    ///
    /// Fails with [`TapeError::Busy`](crate::TapeError::Busy) while a turn of the session is running.
    pub async fn repair(&self, tape: &TapeName) -> Result<RepairReport> {
        let verify_report = self.verify(tape).await?;
        if verify_report.damage.is_empty() {
            return Ok(RepairReport::default());
        }
        // A sidecar is written in turns of its tape, so the tape's lease protects it.
        let owner = tape
            .as_sidecar()
            .map_or(Ok(tape.clone()), |(owner, _)| TapeName::new(owner))?;
        let lease = self.lease(&owner, LeaseWait::No).await?;
        let accept = verify_report.damage.iter().any(Damage::is_acceptable);
        let (mut report, events) = self
            .with_tape_file(tape, move |tape_file| tape_file.repair_locked(accept))
            .await?;
        self.append(tape, events).await?;
        if verify_report.damage.contains(&Damage::StaleIndex) {
            self.reindex(tape).await?;
            report.done.push("rebuilt the index".to_owned());
        }
        drop(lease);
        Ok(report)
    }
}

impl TapeFile {
    /// Removes an incomplete last line and invalid lines. Returns the events to append to the tape. With `accept`, one
    /// of the events records that the remaining damage is accepted.
    fn repair_locked(&mut self, accept: bool) -> Result<(RepairReport, Vec<Entry>)> {
        let lock = self.lock()?;
        let mut writable = self.make_writable(&lock)?;
        let mut report = RepairReport::default();
        let mut events = std::mem::take(&mut writable.reports);
        for event in &events {
            report.done.push("removed the torn tail".to_owned());
            let kept_path = event
                .data()
                .and_then(|data| data.get("kept"))
                .and_then(Value::as_str);
            report.kept.extend(kept_path.map(PathBuf::from));
        }
        let gaps = self.find_gaps(&writable)?;
        if let Some((removed, kept_path)) = self.remove_invalid_lines(&lock, &writable)? {
            let kept_text = kept_path.display().to_string();
            let mut data = json!({"what": "invalid lines", "lines": removed, "kept": kept_text});
            if let (Some(fields), false) = (data.as_object_mut(), gaps.is_empty()) {
                fields.insert(GAPS_FIELD.to_owned(), gaps.into());
            }
            events.push(Entry::event(REPAIRED_EVENT, Some(data)).exclude_from_context());
            let plural = if removed == 1 { "" } else { "s" };
            report
                .done
                .push(format!("removed {removed} invalid line{plural}"));
            report.kept.push(kept_path);
        }
        if accept {
            let data = json!({"what": "order of ids, unpaired tool calls"});
            events.push(Entry::event(verify::ACCEPTED_EVENT, Some(data)).exclude_from_context());
            report
                .done
                .push("accepted ids out of order and unpaired tool results".to_owned());
        }
        drop(lock);
        Ok((report, events))
    }

    /// Returns the hash of each chained entry with invalid lines before it. If its hash does not match without them, the
    /// record of the repair says why.
    fn find_gaps(&self, writable: &WritableTape) -> Result<Vec<String>> {
        let (mut gaps, mut is_open) = (Vec::new(), false);
        let source = self.snapshot_of(&writable.open, writable.record.end);
        source.for_each_line(0, |_, line| {
            if !is_kept(line) {
                is_open = true;
            } else if let Some(hash) = chain::line_hash(line) {
                gaps.extend(is_open.then(|| hash_text(hash)));
                is_open = false;
            }
            Ok(())
        })?;
        Ok(gaps)
    }

    /// Copies the invalid lines to one file and the valid lines to another, then replaces the tape with the latter.
    /// Returns the number of invalid lines and the path of the file with them, or `None` if all lines are valid.
    fn remove_invalid_lines(
        &mut self,
        lock: &TapeLock,
        writable: &WritableTape,
    ) -> Result<Option<(u64, PathBuf)>> {
        let kept_path = self.torn_file("lines");
        let copied = self.copy_lines(writable, &kept_path, false);
        let removed = match copied {
            Ok((removed, _)) if removed > 0 => removed,
            other => {
                let _ = self.store.remove_file(&kept_path);
                return other.map(|_| None);
            }
        };
        self.store.sync_parent_dir(&kept_path)?;
        let temp_path = self.store.paths.temp_file(&self.path);
        let (_, size) = self.copy_lines(writable, &temp_path, true)?;
        let intent = self.announce_replacement(lock, writable)?;
        self.store.rename_file(&temp_path, &self.path)?;
        let content = NewContent {
            size,
            max_id: EntryId::new(writable.record.max_id),
            head: self.kept_head(writable, size)?,
        };
        self.finish_replacement(lock, intent, &content)?;
        Ok(Some((removed, kept_path)))
    }

    /// Returns the last value of the chain with the new end of its line, or with the end of the tape if the line is missing.
    /// So the missing line is found also after the repair.
    fn kept_head(&self, writable: &WritableTape, size: u64) -> Result<Option<ChainHead>> {
        let (mut head, mut end) = (writable.record.head, 0);
        let hash = head.map(|head| head.hash);
        if let Some(head) = &mut head {
            head.end = size;
        }
        let source = self.snapshot_of(&writable.open, writable.record.end);
        source.for_each_line(0, |_, line| {
            if is_kept(line) {
                end += line.len() as u64;
                if let Some(head) = head.as_mut().filter(|_| chain::line_hash(line) == hash) {
                    head.end = end;
                }
            }
            Ok(())
        })?;
        Ok(head)
    }

    /// Copies either the valid or the invalid lines of the tape to a file. Returns the number of lines and bytes.
    fn copy_lines(&self, writable: &WritableTape, path: &Path, valid: bool) -> Result<(u64, u64)> {
        let (mut lines, mut size) = (0, 0);
        let source = self.snapshot_of(&writable.open, writable.record.end);
        let file = self.store.open_for_writing(path, OpenMode::Truncate)?;
        source.for_each_line(0, |_, line| {
            if is_kept(line) == valid {
                file.write_all_at(line, size).describe("write", path)?;
                lines += 1;
                size += line.len() as u64;
            }
            Ok(())
        })?;
        file.sync().describe("write", path)?;
        Ok((lines, size))
    }
}

/// Returns whether a repair keeps a line.
fn is_kept(line: &[u8]) -> bool {
    line.trim_ascii().is_empty() || codec::decode(line).is_some()
}
