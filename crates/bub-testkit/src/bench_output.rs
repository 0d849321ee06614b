//! Output of benchmarks that measure themselves. `cargo xtask bench` collects it.
//!
//! They measure CPU time and bytes, which are more reliable than a clock on a busy machine.

use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// Prints one figure. The name has no spaces; a size comes last, after a slash (`open/1000`).
pub fn print_figure(name: &str, value: f64, unit: &str) {
    // Ignore errors: a closed stdout is no reason to stop.
    let _ = writeln!(std::io::stdout(), "figure {name} {value:.3} {unit}");
}

/// Prints a time in microseconds.
pub fn print_time(name: &str, duration: Duration) {
    print_figure(name, duration.as_secs_f64() * 1e6, "µs");
}

/// Returns whether a quick run was requested (`-- --quick`).
pub fn is_quick() -> bool {
    std::env::args().any(|arg| arg == "--quick")
}

/// Returns the CPU time of all threads of this process, with nanosecond resolution.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Returns the bytes that this process has read from files and sockets, including the page cache.
pub fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
        .unwrap_or(0)
}

/// Cost of one run.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Elapsed time.
    pub wall: Duration,
    /// CPU time of all threads of this process.
    pub cpu: Duration,
    /// Bytes read.
    pub read: u64,
}

/// Runs `work` several times and returns the minimum of each figure, because other processes only
/// add to it.
pub fn measure_minimum(runs: u32, mut work: impl FnMut()) -> Cost {
    let mut once = |is_real: bool| {
        let (begun, busy, read) = (Instant::now(), cpu_time(), bytes_read());
        if is_real {
            work();
        }
        let read = bytes_read().saturating_sub(read);
        Cost {
            wall: begun.elapsed(),
            cpu: cpu_time().saturating_sub(busy),
            read,
        }
    };
    // Taking the measurements costs time and reads, too.
    let overhead = (0..10)
        .map(|_| once(false))
        .reduce(minimum_cost)
        .unwrap_or(Cost::NOTHING);
    let measured = (0..runs)
        .map(|_| once(true))
        .reduce(minimum_cost)
        .unwrap_or(Cost::NOTHING);
    Cost {
        wall: measured.wall.saturating_sub(overhead.wall),
        cpu: measured.cpu.saturating_sub(overhead.cpu),
        read: measured.read.saturating_sub(overhead.read),
    }
}

impl Cost {
    const NOTHING: Self = Self {
        wall: Duration::ZERO,
        cpu: Duration::ZERO,
        read: 0,
    };
}

fn minimum_cost(first: Cost, second: Cost) -> Cost {
    Cost {
        wall: first.wall.min(second.wall),
        cpu: first.cpu.min(second.cpu),
        read: first.read.min(second.read),
    }
}
