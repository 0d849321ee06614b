//! How benches that measure for themselves say what they found, so that `cargo xtask bench` can collect it; and what
//! they measure with: processor time and bytes, which say more than a clock on a busy computer.

use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// Says one figure. The name has no spaces; a size that it depends on comes last, behind a slash (`open/1000`).
pub fn figure(name: &str, value: f64, unit: &str) {
    // Nobody to tell is no reason to stop.
    let _ = writeln!(std::io::stdout(), "figure {name} {value:.3} {unit}");
}

/// Says a time, in microseconds.
pub fn time(name: &str, taken: Duration) {
    figure(name, taken.as_secs_f64() * 1e6, "µs");
}

/// Whether a short run was asked for (`-- --quick`).
pub fn is_quick() -> bool {
    std::env::args().any(|arg| arg == "--quick")
}

/// Processor time that all threads of this process have used, in nanoseconds as they are.
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Bytes that this process has read from files and sockets so far, the page cache included.
pub fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
        .unwrap_or(0)
}

/// What one run of something took.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// By the clock.
    pub wall: Duration,
    /// Of the processor, in all threads of this process.
    pub cpu: Duration,
    /// Bytes read.
    pub read: u64,
}

/// Runs something several times and takes the least of each figure: others only ever add to it.
pub fn least(runs: u32, mut work: impl FnMut()) -> Cost {
    let mut once = |is_real: bool| {
        let (begun, busy, read) = (Instant::now(), cpu(), bytes_read());
        if is_real {
            work();
        }
        let read = bytes_read().saturating_sub(read);
        Cost {
            wall: begun.elapsed(),
            cpu: cpu().saturating_sub(busy),
            read,
        }
    };
    // Looking at the figures reads and takes time, too.
    let looking = (0..10)
        .map(|_| once(false))
        .reduce(min)
        .unwrap_or(Cost::NOTHING);
    let found = (0..runs)
        .map(|_| once(true))
        .reduce(min)
        .unwrap_or(Cost::NOTHING);
    Cost {
        wall: found.wall.saturating_sub(looking.wall),
        cpu: found.cpu.saturating_sub(looking.cpu),
        read: found.read.saturating_sub(looking.read),
    }
}

impl Cost {
    const NOTHING: Self = Self {
        wall: Duration::ZERO,
        cpu: Duration::ZERO,
        read: 0,
    };
}

fn min(one: Cost, other: Cost) -> Cost {
    Cost {
        wall: one.wall.min(other.wall),
        cpu: one.cpu.min(other.cpu),
        read: one.read.min(other.read),
    }
}
