//! The session lease: a file lock that the system gives back when its holder dies.

use super::{context::StoreContext, open_tapes::OpenTapeGuard};
use crate::{
    Lease, Result, TapeError, TapeName,
    fs::{FsFile, OpenMode},
    time,
};

/// Who holds it is a courtesy to people who wait.
const MAX_HOLDER_BYTES: usize = 200;

/// Room for a process id and a date.
const NOTE_BYTES: usize = 64;

/// Takes the lease if it is free. The tape stays open while it is held: the holder is about to work on it.
pub(crate) fn try_lease(
    store_context: &StoreContext,
    tape: &TapeName,
    pin: impl FnOnce() -> OpenTapeGuard,
) -> Result<Lease> {
    let path = store_context.layout.lease(tape);
    let failed = |error| store_context.error("lock", &path, error);
    let file = store_context.open_write(&path, OpenMode::Write)?;
    // One that was removed meanwhile is as good as held: whoever removed it may have made another one.
    let inode = file.stat().map_err(failed)?.inode;
    if !file.try_lock().map_err(failed)? || !store_context.has_name(inode, &path)? {
        return Err(TapeError::Busy {
            tape: tape.to_string(),
            holder: holder(&*file),
        });
    }
    let note = format!("process {} since {}", std::process::id(), time::now_iso());
    // Always of the same length, over the last one: file systems flush a file that was cut to nothing and written anew.
    // The lock is what counts; on a full disk the note is missing.
    let _ = file.write_all_at(format!("{note:<NOTE_BYTES$}").as_bytes(), 0);
    Ok(Lease::new(tape.clone(), (file, pin())))
}

/// Who has it, if anybody. Looking makes no files.
pub(crate) fn held_by(store_context: &StoreContext, tape: &TapeName) -> Option<String> {
    let file = store_context
        .fs
        .open(&store_context.layout.lease(tape), OpenMode::Read)
        .ok()?;
    // Closing the file gives back what was taken for a moment.
    matches!(file.try_lock(), Ok(false)).then(|| holder(&*file))
}

fn holder(file: &dyn FsFile) -> String {
    let bytes = file.read_range(0, MAX_HOLDER_BYTES).unwrap_or_default();
    let note = String::from_utf8_lossy(&bytes).trim().to_owned();
    if note.is_empty() {
        "another process".to_owned()
    } else {
        note
    }
}
