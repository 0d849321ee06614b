//! A file system that fails when it is told to.
//!
//! [`FaultFs`] works on the real one and counts every operation that changes something. A test runs its scenario once
//! to learn how many steps it has, then again for each step with a failure or a sudden death there.

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

/// The operating system's number for an input/output error.
const EIO: i32 = 5;

/// What goes wrong, and when. Clones steer the same file system.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    steps: u64,
    syncs: u64,
    crash_at: Option<u64>,
    fail_at: Option<(u64, io::ErrorKind)>,
    abort_at: Option<u64>,
    crashed: bool,
    failing_syncs: u64,
    longest_write: Option<usize>,
    free_bytes: Option<u64>,
    /// From that step on there is no room.
    full_from: Option<u64>,
    /// From that step on no fsync works.
    unsynced_from: Option<u64>,
    /// The first fsync from that step on fails.
    one_sync_from: Option<u64>,
    /// That write stores something else and says that it worked.
    garbled_at: Option<u64>,
    delay: Duration,
    durable: Option<DurableFiles>,
}

/// What an operation shall do.
enum FaultDecision {
    Proceed,
    /// Write something else, and say that it worked.
    Garble,
    /// Do half of it, if it has halves, then die.
    Die,
}

impl Faults {
    /// Nothing goes wrong until something is asked for.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file system under these faults.
    pub fn fs(&self) -> Arc<dyn Fs> {
        Arc::new(FaultFs {
            faults: self.clone(),
        })
    }

    /// How many changing operations there were.
    pub fn steps(&self) -> u64 {
        self.plan().steps
    }

    /// How many fsyncs of files were asked for.
    pub fn syncs(&self) -> u64 {
        self.plan().syncs
    }

    /// Everything stops at that step, as if the machine had lost this process: a write is done by half, and nothing
    /// works any more.
    pub fn crash_at(&self, step: u64) {
        self.plan().crash_at = Some(step);
    }

    /// Whether the crash has happened.
    pub fn crashed(&self) -> bool {
        self.plan().crashed
    }

    /// That step fails, once.
    pub fn fail_at(&self, step: u64, error: io::ErrorKind) {
        self.plan().fail_at = Some((step, error));
    }

    /// The process is ended at that step, without any clean-up.
    pub fn abort_at(&self, step: u64) {
        self.plan().abort_at = Some(step);
    }

    /// The next so many fsyncs fail with an input/output error.
    pub fn fail_syncs(&self, count: u64) {
        self.plan().failing_syncs = count;
    }

    /// No write takes more than so many bytes at once.
    pub fn short_writes(&self, longest: usize) {
        self.plan().longest_write = Some(longest);
    }

    /// The disk has room for so many more bytes; `None` for no limit.
    pub fn disk_space(&self, free: Option<u64>) {
        self.plan().free_bytes = free;
    }

    /// From that step on the disk has no room, until it is healed.
    pub fn full_from(&self, step: u64) {
        self.plan().full_from = Some(step);
    }

    /// From that step on every fsync of a file fails with an input/output error, until it is healed.
    pub fn fail_syncs_from(&self, step: u64) {
        self.plan().unsynced_from = Some(step);
    }

    /// The first fsync of a file from that step on fails with an input/output error.
    pub fn fail_sync_after(&self, step: u64) {
        self.plan().one_sync_from = Some(step);
    }

    /// The write at that step stores something else and says that it worked.
    pub fn garble_at(&self, step: u64) {
        self.plan().garbled_at = Some(step);
    }

    /// Every changing operation takes so long.
    pub fn slow(&self, delay: Duration) {
        self.plan().delay = delay;
    }

    /// Nothing goes wrong from now on. What is dead stays dead.
    pub fn heal(&self) {
        let mut plan = self.plan();
        *plan = Plan {
            steps: plan.steps,
            syncs: plan.syncs,
            crashed: plan.crashed,
            durable: plan.durable.take(),
            ..Plan::default()
        };
    }

    /// Remembers from now on what is made durable, for [`Faults::cut_power`]. What is below the directory already is.
    pub fn remember_durable(&self, below: &Path) -> io::Result<()> {
        let durable = DurableFiles::from_directory(below)?;
        self.plan().durable = Some(durable);
        Ok(())
    }

    /// Leaves of the files below a directory what was made durable (content by an fsync of the file, names by one of the
    /// directory), and of the rest what [`PowerLossEffect`] says. Directories themselves stay. Nothing may use the files any more.
    pub fn cut_power(&self, below: &Path, left: PowerLossEffect) -> io::Result<()> {
        self.plan()
            .durable
            .take()
            .map_or(Ok(()), |durable| durable.restore(below, left))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> io::Result<()> {
        if self.plan().crashed {
            Err(io::Error::other("the process is gone"))
        } else {
            Ok(())
        }
    }

    /// Counts a changing operation and decides about it.
    fn step(&self) -> io::Result<FaultDecision> {
        self.alive()?;
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
        if plan.garbled_at == step {
            return Ok(FaultDecision::Garble);
        }
        match plan.fail_at {
            Some((at, error)) if Some(at) == step => Err(error.into()),
            _ => Ok(FaultDecision::Proceed),
        }
    }

    /// Does something that has no halves.
    fn whole<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.step()? {
            FaultDecision::Proceed | FaultDecision::Garble => operation(),
            FaultDecision::Die => Err(io::Error::other("the process is gone")),
        }
    }

    /// How much of a growth by so many bytes there is room for.
    fn take_space(&self, growth: u64) -> u64 {
        let mut plan = self.plan();
        let Some(free) = plan.free_bytes.as_mut() else {
            return growth;
        };
        let granted = growth.min(*free);
        *free -= granted;
        granted
    }

    fn give_space(&self, bytes: u64) {
        if let Some(free) = self.plan().free_bytes.as_mut() {
            *free += bytes;
        }
    }

    fn sync_verdict(&self) -> io::Result<()> {
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

/// The real file system under [`Faults`].
#[derive(Debug, Clone, Default)]
pub struct FaultFs {
    faults: Faults,
}

impl Fs for FaultFs {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.faults.whole(|| RealFs.create_dir_all(path))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn FsFile>> {
        let is_new = !path.exists();
        let open = || RealFs.open(path, mode);
        let inner = if mode == OpenMode::Read || path.exists() && mode == OpenMode::Write {
            self.faults.alive().and_then(|()| open())?
        } else {
            self.faults.whole(open)?
        };
        if let Some(durable) = self.faults.plan().durable.as_mut().filter(|_| is_new) {
            durable.made(inner.stat()?.inode);
        }
        Ok(Box::new(FaultFile {
            inner,
            faults: self.faults.clone(),
        }))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.faults.alive().and_then(|()| RealFs.stat(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.whole(|| RealFs.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.whole(|| RealFs.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.whole(|| {
            let size = RealFs.stat(path).map_or(0, |stat| stat.size);
            RealFs
                .remove(path)
                .inspect(|()| self.faults.give_space(size))
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.faults.alive().and_then(|()| RealFs.read_dir(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.faults.whole(|| Ok(()))?;
        match &mut self.faults.plan().durable {
            Some(durable) => durable.names_synced(path),
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
            .alive()
            .and_then(|()| self.inner.read_at(buffer, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.faults.step()? {
            FaultDecision::Proceed => {}
            FaultDecision::Garble => return self.inner.write_at(&vec![b'#'; bytes.len()], offset),
            FaultDecision::Die => {
                self.write_part(bytes, offset, bytes.len() / 2)?;
                return Err(io::Error::other("the process is gone"));
            }
        }
        let longest = self
            .faults
            .plan()
            .longest_write
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let size = self.inner.stat()?.size;
        let growth = (offset + longest as u64).saturating_sub(size);
        let missing = growth - self.faults.take_space(growth);
        let length = longest.saturating_sub(usize::try_from(missing).unwrap_or(usize::MAX));
        if length == 0 && longest > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write_part(bytes, offset, length)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.faults.whole(|| {
            let freed = self.inner.stat()?.size.saturating_sub(size);
            self.inner
                .set_len(size)
                .inspect(|()| self.faults.give_space(freed))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.whole(|| self.faults.sync_verdict())?;
        // Where it is remembered what is durable, there is no need to wait for the disk.
        match &mut self.faults.plan().durable {
            Some(durable) => durable.content_synced(&*self.inner),
            None => self.inner.sync(),
        }
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.faults.alive().and_then(|()| self.inner.stat())
    }

    fn lock(&self) -> io::Result<()> {
        self.faults.alive().and_then(|()| self.inner.lock())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.faults.alive().and_then(|()| self.inner.try_lock())
    }

    fn unlock(&self) -> io::Result<()> {
        // A dead process holds no locks.
        self.inner.unlock()
    }
}
