//! The session lease: a file lock that the operating system releases when its holder exits.

use super::{context::StoreContext, open_tapes::OpenTapeGuard};
use crate::{
    Lease, Result, TapeError, TapeName,
    fs::{FsFile, OpenMode},
    time,
};

/// Maximum number of bytes read from a lease file. The holder is only displayed, so longer content is truncated.
const MAX_HOLDER_BYTES: usize = 200;

/// Length of the holder in a lease file, padded with spaces. It has room for a process id and a date.
const HOLDER_BYTES: usize = 64;

/// Acquires the lease if it is free. The tape stays open while the lease is held, because its holder will use it soon.
pub(crate) fn try_acquire_lease(
    store_context: &StoreContext,
    tape: &TapeName,
    pin: impl FnOnce() -> OpenTapeGuard,
) -> Result<Lease> {
    let path = store_context.paths.lease_file(tape);
    let lock_error = |error| store_context.io_error("lock", &path, error);
    let file = store_context.open_for_writing(&path, OpenMode::Write)?;
    // If the lease file was removed meanwhile, treat it as held: another process may have created a new one.
    let inode = file.stat().map_err(lock_error)?.inode;
    if !file.try_lock().map_err(lock_error)? || !store_context.is_inode_at(inode, &path)? {
        return Err(TapeError::Busy {
            tape: tape.to_string(),
            holder: read_holder(&*file),
        });
    }
    let holder = format!("process {} since {}", std::process::id(), time::now_iso());
    // The text has a fixed length and overwrites the previous one, because file systems flush a file that was truncated
    // and rewritten. Ignore errors, such as a full disk: only the lock matters.
    let _ = file.write_all_at(format!("{holder:<HOLDER_BYTES$}").as_bytes(), 0);
    Ok(Lease::new(tape.clone(), (LockedFile(file), pin())))
}

/// A locked file that is unlocked when it is dropped. Closing the file is not enough: a child process that is just being
/// started has a copy of its descriptor, which keeps the lock.
struct LockedFile(Box<dyn FsFile>);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // The lock is released when the process ends, at the latest.
        let _ = self.0.unlock();
    }
}

/// Returns the holder of the lease, or `None` if the lease is free. Creates no files.
pub(crate) fn lease_holder(store_context: &StoreContext, tape: &TapeName) -> Option<String> {
    let file = store_context
        .fs
        .open(&store_context.paths.lease_file(tape), OpenMode::Read)
        .ok()?;
    // If the lock was free, closing the file releases it again.
    matches!(file.try_lock(), Ok(false)).then(|| read_holder(&*file))
}

fn read_holder(file: &dyn FsFile) -> String {
    let bytes = file.read_range(0, MAX_HOLDER_BYTES).unwrap_or_default();
    let holder = String::from_utf8_lossy(&bytes).trim().to_owned();
    if holder.is_empty() {
        "another process".to_owned()
    } else {
        holder
    }
}
