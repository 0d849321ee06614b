//! The session lease: a file lock that the operating system releases when its holder exits.

use super::{
    context::{IoResultExt as _, StoreContext},
    open_tapes::OpenTapes,
    tape_file::TapeLock,
};
use crate::{
    Lease, Result, TapeError, TapeName,
    fs::{FsFile, OpenMode},
    time,
};

/// Maximum number of bytes read from a lease file. The holder is only displayed, so longer content is truncated.
const MAX_HOLDER_BYTES: usize = 200;

/// Length in bytes of the text in a lease file that names the holder. It has room for a process id and a date; shorter
/// texts are padded with spaces.
const HOLDER_BYTES: usize = 64;

/// Acquires the lease if it is free. The files of the tape stay open while the lease is held, because the holder will
/// use them soon.
pub(crate) fn try_acquire_lease(open_tapes: &OpenTapes, tape: &TapeName) -> Result<Lease> {
    let store = &open_tapes.store;
    let path = store.paths.lease_file(tape);
    let file = store.open_for_writing(&path, OpenMode::Write)?;
    // If the lease file was removed meanwhile, treat the lease as held: another process may have created a new lease
    // file.
    let inode = file.stat().describe("lock", &path)?.inode;
    let is_locked = file.try_lock().describe("lock", &path)?;
    if !is_locked || !store.is_inode_at(inode, &path)? {
        return Err(TapeError::Busy {
            tape: tape.to_string(),
            holder: read_holder(&*file),
        });
    }
    let holder = format!("process {} since {}", std::process::id(), time::now_iso());
    // The text has a fixed length and overwrites the previous one, because file systems flush a file that was truncated
    // and rewritten, which is slow. Ignore errors, such as a full disk: only the lock matters.
    let _ = file.write_all_at(format!("{holder:<HOLDER_BYTES$}").as_bytes(), 0);
    let guard = (TapeLock(file.into()), open_tapes.open_files(tape));
    Ok(Lease::new(tape.clone(), guard))
}

/// Returns the holder of the lease, or `None` if the lease is free. Creates no files.
pub(crate) fn lease_holder(store: &StoreContext, tape: &TapeName) -> Option<String> {
    let file = store
        .open_existing(&store.paths.lease_file(tape))
        .ok()
        .flatten()?;
    // If the lock was free, closing the file releases it again.
    matches!(file.try_lock(), Ok(false)).then(|| read_holder(&*file))
}

fn read_holder(file: &dyn FsFile) -> String {
    let bytes = file.read_range(0, MAX_HOLDER_BYTES).unwrap_or_default();
    match String::from_utf8_lossy(&bytes).trim() {
        "" => "another process".to_owned(),
        holder => holder.to_owned(),
    }
}
