//! A file system with injected faults.
//!
//! [`FaultFs`] uses the real file system and counts every changing operation. A test runs its
//! scenario once to count the steps, then again for each step with a failure or a crash there.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bub_tape::fs::{FileStat, Fs, FsFile, OpenMode, RealFs};

use self::power_loss::DurableFiles;
pub use self::power_loss::PowerLossEffect;

mod power_loss;

/// OS error number of an input/output error.
const EIO: i32 = 5;

/// Faults and when they occur. Clones control the same file system.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    steps: u64,
    syncs: u64,
    crash_at: Option<u64>,
    kill_at: Option<u64>,
    fail_at: Option<(u64, io::ErrorKind)>,
    abort_at: Option<u64>,
    crashed: bool,
    failing_syncs: u64,
    max_write_bytes: Option<usize>,
    free_bytes: Option<u64>,
    /// First step at which the disk is full.
    full_from: Option<u64>,
    /// First step at which every fsync fails.
    unsynced_from: Option<u64>,
    /// First step at which one fsync fails.
    one_sync_from: Option<u64>,
    /// Step whose write stores different data and reports success.
    garbled_at: Option<u64>,
    delay: Duration,
    durable: Option<DurableFiles>,
}

/// Effect of the faults on one operation.
enum FaultDecision {
    Proceed,
    /// Write different data and report success.
    Garble,
    /// Perform half of a write, then crash.
    Die,
}

impl Faults {
    /// Creates a plan without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a file system with these faults.
    pub fn fs(&self) -> Arc<dyn Fs> {
        Arc::new(FaultFs {
            faults: self.clone(),
        })
    }

    /// Returns the number of changing operations.
    pub fn steps(&self) -> u64 {
        self.plan().steps
    }

    /// Returns the number of requested file fsyncs.
    pub fn syncs(&self) -> u64 {
        self.plan().syncs
    }

    /// Crashes the process at a step: half of a write is performed, and every later operation
    /// fails.
    pub fn crash_at(&self, step: u64) {
        self.plan().crash_at = Some(step);
    }

    /// Kills the process before a step: neither this operation nor a later one is performed. The kernel performs a small
    /// write completely or not at all, also if the process is killed.
    pub fn kill_at(&self, step: u64) {
        self.plan().kill_at = Some(step);
    }

    /// Returns whether the crash has occurred.
    pub fn has_crashed(&self) -> bool {
        self.plan().crashed
    }

    /// Fails one step once.
    pub fn fail_at(&self, step: u64, error: io::ErrorKind) {
        self.plan().fail_at = Some((step, error));
    }

    /// Aborts the process at a step, without cleanup.
    pub fn abort_at(&self, step: u64) {
        self.plan().abort_at = Some(step);
    }

    /// Fails the next `count` fsyncs with an input/output error.
    pub fn fail_syncs(&self, count: u64) {
        self.plan().failing_syncs = count;
    }

    /// Limits the bytes per write.
    pub fn limit_writes(&self, max_bytes: usize) {
        self.plan().max_write_bytes = Some(max_bytes);
    }

    /// Sets the free disk space in bytes; `None` for no limit.
    pub fn set_disk_space(&self, free: Option<u64>) {
        self.plan().free_bytes = free;
    }

    /// Makes the disk full from a step on, until `clear_faults`.
    pub fn fill_disk_from(&self, step: u64) {
        self.plan().full_from = Some(step);
    }

    /// Fails every file fsync from a step on with an input/output error, until `clear_faults`.
    pub fn fail_syncs_from(&self, step: u64) {
        self.plan().unsynced_from = Some(step);
    }

    /// Fails the first file fsync from a step on with an input/output error.
    pub fn fail_sync_after(&self, step: u64) {
        self.plan().one_sync_from = Some(step);
    }

    /// Makes the write at a step store different data and report success.
    pub fn garble_at(&self, step: u64) {
        self.plan().garbled_at = Some(step);
    }

    /// Delays every changing operation.
    pub fn delay_operations(&self, delay: Duration) {
        self.plan().delay = delay;
    }

    /// Removes all faults. A crashed process stays crashed.
    pub fn clear_faults(&self) {
        let mut plan = self.plan();
        *plan = Plan {
            steps: plan.steps,
            syncs: plan.syncs,
            crashed: plan.crashed,
            durable: plan.durable.take(),
            ..Plan::default()
        };
    }

    /// Tracks from now on what is durable, for [`Faults::cut_power`]. Existing files below the
    /// directory count as durable.
    pub fn track_durability(&self, below: &Path) -> io::Result<()> {
        let durable = DurableFiles::from_directory(below)?;
        self.plan().durable = Some(durable);
        Ok(())
    }

    /// Simulates a power loss for the files below a directory.
    ///
    /// Durable data stays: content after an fsync of the file, names after an fsync of the
    /// directory. [`PowerLossEffect`] determines the rest. Directories themselves stay. The files
    /// must no longer be in use.
    pub fn cut_power(&self, below: &Path, effect: PowerLossEffect) -> io::Result<()> {
        self.plan()
            .durable
            .take()
            .map_or(Ok(()), |durable| durable.apply_power_loss(below, effect))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_alive(&self) -> io::Result<()> {
        if self.plan().crashed {
            Err(io::Error::other("the process has crashed"))
        } else {
            Ok(())
        }
    }

    /// Counts a changing operation and decides its outcome.
    fn count_step(&self) -> io::Result<FaultDecision> {
        self.check_alive()?;
        let delay = self.plan().delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let mut plan = self.plan();
        plan.steps += 1;
        if plan.full_from.is_some_and(|from| plan.steps >= from) {
            plan.free_bytes.get_or_insert(0);
        }
        let step = Some(plan.steps);
        if plan.abort_at == step {
            std::process::abort();
        }
        if plan.crash_at == step {
            plan.crashed = true;
            return Ok(FaultDecision::Die);
        }
        if plan.kill_at == step {
            plan.crashed = true;
            return Err(io::Error::other("the process has crashed"));
        }
        if plan.garbled_at == step {
            return Ok(FaultDecision::Garble);
        }
        match plan.fail_at {
            Some((at, error)) if Some(at) == step => Err(error.into()),
            _ => Ok(FaultDecision::Proceed),
        }
    }

    /// Counts a step and runs an operation that is performed completely or not at all.
    fn run_atomic<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.count_step()? {
            FaultDecision::Proceed | FaultDecision::Garble => operation(),
            FaultDecision::Die => Err(io::Error::other("the process has crashed")),
        }
    }

    /// Reserves disk space for a file that grows. Returns how many of the bytes fit on the disk.
    fn reserve_space(&self, growth: u64) -> u64 {
        let mut plan = self.plan();
        let Some(free) = plan.free_bytes.as_mut() else {
            return growth;
        };
        let granted = growth.min(*free);
        *free -= granted;
        granted
    }

    fn release_space(&self, bytes: u64) {
        if let Some(free) = self.plan().free_bytes.as_mut() {
            *free += bytes;
        }
    }

    fn sync_outcome(&self) -> io::Result<()> {
        let mut plan = self.plan();
        plan.syncs += 1;
        if plan.one_sync_from.is_some_and(|from| plan.steps >= from) {
            plan.one_sync_from = None;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if plan.failing_syncs == 0 && plan.unsynced_from.is_none_or(|from| plan.steps < from) {
            return Ok(());
        }
        plan.failing_syncs = plan.failing_syncs.saturating_sub(1);
        Err(io::Error::from_raw_os_error(EIO))
    }
}

/// The real file system with [`Faults`].
#[derive(Debug, Clone, Default)]
pub struct FaultFs {
    faults: Faults,
}

impl Fs for FaultFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.faults.run_atomic(|| RealFs.create_dir_all(path))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>> {
        let is_new = !path.exists();
        let open = || RealFs.open(path, mode);
        let inner = if mode == OpenMode::Read || path.exists() && mode == OpenMode::Write {
            self.faults.check_alive().and_then(|()| open())?
        } else {
            self.faults.run_atomic(open)?
        };
        if let Some(durable) = self.faults.plan().durable.as_mut().filter(|_| is_new) {
            durable.record_new_file(inner.stat()?.inode);
        }
        Ok(Box::new(FaultFile {
            inner,
            faults: self.faults.clone(),
        }))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.faults.check_alive().and_then(|()| RealFs.stat(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.run_atomic(|| RealFs.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.run_atomic(|| RealFs.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.run_atomic(|| {
            let size = RealFs.stat(path).map_or(0, |stat| stat.size);
            RealFs
                .remove(path)
                .inspect(|()| self.faults.release_space(size))
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.faults
            .check_alive()
            .and_then(|()| RealFs.read_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.run_atomic(|| Ok(()))?;
        match &mut self.faults.plan().durable {
            Some(durable) => durable.record_names(path),
            None => RealFs.sync_dir(path),
        }
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Box<dyn FsFile>,
    faults: Faults,
}

impl FaultFile {
    fn write_part(&self, bytes: &[u8], offset: u64, length: usize) -> io::Result<usize> {
        self.inner
            .write_at(bytes.get(..length).unwrap_or(bytes), offset)
    }
}

impl FsFile for FaultFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.faults
            .check_alive()
            .and_then(|()| self.inner.read_at(buffer, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.faults.count_step()? {
            FaultDecision::Proceed => {}
            FaultDecision::Garble => return self.inner.write_at(&vec![b'#'; bytes.len()], offset),
            FaultDecision::Die => {
                self.write_part(bytes, offset, bytes.len() / 2)?;
                return Err(io::Error::other("the process has crashed"));
            }
        }
        let max_bytes = self
            .faults
            .plan()
            .max_write_bytes
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let size = self.inner.stat()?.size;
        let growth = (offset + max_bytes as u64).saturating_sub(size);
        let missing = growth - self.faults.reserve_space(growth);
        let length = max_bytes.saturating_sub(usize::try_from(missing).unwrap_or(usize::MAX));
        if length == 0 && max_bytes > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write_part(bytes, offset, length)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.faults.run_atomic(|| {
            let freed = self.inner.stat()?.size.saturating_sub(size);
            self.inner
                .set_len(size)
                .inspect(|()| self.faults.release_space(freed))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.run_atomic(|| self.faults.sync_outcome())?;
        // If durability is tracked, skip the real fsync.
        match &mut self.faults.plan().durable {
            Some(durable) => durable.record_content(&*self.inner),
            None => self.inner.sync(),
        }
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.faults.check_alive().and_then(|()| self.inner.stat())
    }

    fn lock(&self) -> io::Result<()> {
        self.faults.check_alive().and_then(|()| self.inner.lock())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.faults
            .check_alive()
            .and_then(|()| self.inner.try_lock())
    }

    fn unlock(&self) -> io::Result<()> {
        // A crashed process holds no locks.
        self.inner.unlock()
    }
}
