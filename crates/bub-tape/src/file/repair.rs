//! Putting a damaged tape in order, on request: what is taken out is kept, and the tape says so.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    FileStore,
    lines::ForwardLines,
    lock_record::{LockPhase, LockRecord},
    tape_file::{TapeFile, TapeLock, WritableTape},
    verify,
};
use crate::{
    Damage, Entry, LeaseWait, Result, TapeName, TapeStore as _, codec,
    fs::{FsFile, OpenMode},
    time,
};

/// What a repair did, and where it put what it took out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// One line for each thing that was done.
    pub done: Vec<String>,
    /// Where things that were taken out are kept.
    pub kept: Vec<PathBuf>,
}

/// A tape whose lines were told apart.
struct PartitionedLines {
    /// The size of what is good.
    size: u64,
    /// How many lines are not.
    removed: u64,
}

impl FileStore {
    /// Puts a tape in order: cuts off a torn tail, takes out lines that are no entries, makes a wrong index again. What
    /// only rewriting history could change is accepted by an event on the tape. `Busy` while a turn is running.
    pub async fn repair(&self, tape: &TapeName) -> Result<RepairReport> {
        let verify_report = self.verify(tape).await?;
        if verify_report.damage.is_empty() {
            return Ok(RepairReport::default());
        }
        // A sidecar is written in turns of its tape.
        let owner = tape
            .as_sidecar()
            .map_or(Ok(tape.clone()), |(owner, _)| TapeName::new(owner))?;
        let lease = self.lease(&owner, LeaseWait::No).await?;
        let accept = verify_report.damage.iter().any(Damage::is_acceptable);
        let slot = self.open_tapes.get(tape);
        let (mut repaired, events) =
            super::blocking(move || slot.core().repair_locked(accept)).await?;
        self.append(tape, events).await?;
        if verify_report.damage.contains(&Damage::StaleIndex) {
            self.reindex(tape).await?;
            repaired.done.push("made the index again".to_owned());
        }
        drop(lease);
        Ok(repaired)
    }
}

impl TapeFile {
    /// Cuts off a torn tail and takes out lines that are no entries. What was done becomes an event on the tape, with
    /// `accept` also that the rest is accepted as it is.
    fn repair_locked(&mut self, accept: bool) -> Result<(RepairReport, Vec<Entry>)> {
        let held = self.lock()?;
        let mut writable = self.make_writable(&held)?;
        let mut repaired = RepairReport::default();
        let mut events = std::mem::take(&mut writable.reports);
        for event in &events {
            repaired.done.push("cut off the torn tail".to_owned());
            let kept = event
                .data()
                .and_then(|data| data.get("kept"))
                .and_then(Value::as_str);
            repaired.kept.extend(kept.map(PathBuf::from));
        }
        if let Some((removed, kept)) = self.remove_invalid_lines(&held, &writable)? {
            let kept_text = kept.display().to_string();
            let data =
                json!({"what": "lines that were no entries", "lines": removed, "kept": kept_text});
            events.push(Entry::event("tape.repaired", Some(data)).outside_context());
            let noun = if removed == 1 {
                "line that was no entry"
            } else {
                "lines that were no entries"
            };
            repaired.done.push(format!("took out {removed} {noun}"));
            repaired.kept.push(kept);
        }
        if accept {
            let data = json!({"what": "order of ids, unpaired tool calls"});
            events.push(Entry::event(verify::ACCEPTED_EVENT, Some(data)).outside_context());
            repaired
                .done
                .push("accepted what only rewriting history could change".to_owned());
        }
        drop(held);
        Ok((repaired, events))
    }

    /// Copies the good lines to a new file and the others aside, then lets the new file take the tape's place.
    fn remove_invalid_lines(
        &mut self,
        held: &TapeLock,
        writable: &WritableTape,
    ) -> Result<Option<(u64, PathBuf)>> {
        let path = self.store_context.layout.tape(&self.tape);
        let temporary = self.store_context.scratch(&path);
        let kept = self.store_context.layout.torn().join(format!(
            "{}.lines.{}.torn",
            self.tape,
            time::run_id()
        ));
        let sorted = self.partition_lines(writable, &temporary, &kept);
        let sorted = match sorted {
            Ok(sorted) if sorted.removed > 0 => sorted,
            other => {
                let _ = self.store_context.remove(&temporary);
                let _ = self.store_context.remove(&kept);
                return other.map(|_| None);
            }
        };
        self.store_context.sync_dir_of(&kept)?;
        let intent = self.write_record(
            held,
            LockRecord {
                phase: LockPhase::Replace,
                ..writable.record
            },
        )?;
        self.store_context.move_to(&temporary, &path)?;
        self.store_context.sync_dir_of(&path)?;
        self.forget();
        let stat = self
            .store_context
            .fs
            .stat(&path)
            .map_err(|error| self.error("look at", error))?;
        let idle = LockRecord::idle(stat.inode, sorted.size, writable.record.max_id);
        self.write_record(
            held,
            LockRecord {
                sequence: intent.sequence,
                synced: sorted.size,
                ..idle
            },
        )?;
        // A stale index is recognised as such; removing it is tidiness.
        let _ = super::index::remove(&self.store_context, &self.tape);
        Ok(Some((sorted.removed, kept)))
    }

    fn partition_lines(
        &self,
        writable: &WritableTape,
        good: &Path,
        bad: &Path,
    ) -> Result<PartitionedLines> {
        let good_file = self.store_context.open_write(good, OpenMode::Truncate)?;
        let bad_file = self.store_context.open_write(bad, OpenMode::Truncate)?;
        let (mut good_end, mut bad_end, mut removed) = (0, 0, 0);
        let mut outcome = Ok(());
        let mut lines = ForwardLines::large(0, writable.record.end);
        let source = &*writable.open.file;
        while lines
            .advance(source, |_, line| {
                let is_good = line.trim_ascii().is_empty() || codec::decode(line).is_some();
                let put = |file: &dyn FsFile, end: &mut u64| {
                    let written = file.write_all_at(line, *end);
                    *end += line.len() as u64;
                    written
                };
                if outcome.is_ok() {
                    outcome = if is_good {
                        put(&*good_file, &mut good_end)
                    } else {
                        put(&*bad_file, &mut bad_end)
                    };
                    removed += u64::from(!is_good);
                }
            })
            .map_err(|error| self.error("read", error))?
        {}
        let finished = outcome
            .and_then(|()| bad_file.sync())
            .and_then(|()| good_file.sync());
        finished.map_err(|error| self.store_context.error("write", good, error))?;
        Ok(PartitionedLines {
            size: good_end,
            removed,
        })
    }
}
