//! Baseline costs of basic operations on this machine. Times are reported relative to them.

use std::{
    fs::{self, OpenOptions},
    hint::black_box,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::TaskResult;

/// A name, a description of the operation, and its best time.
pub(crate) struct Baseline {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) nanos: f64,
}

/// Returns the baseline for a figure, by its benchmark and name.
pub(crate) fn baseline_name(bench: &str, figure: &str) -> &'static str {
    match bench {
        "bub-plugin/roundtrip" => "pipe",
        "bub-model/client" => "tcp",
        "bub-agent/shell" => "process",
        _ if figure.contains("fsync") || figure.contains("always") => "fsync",
        _ => "loop",
    }
}

pub(crate) fn measure_baselines() -> TaskResult<Vec<Baseline>> {
    Ok(vec![
        Baseline {
            name: "loop",
            about: "a thousand steps of arithmetic",
            nanos: measure_arithmetic(),
        },
        Baseline {
            name: "fsync",
            about: "append 300 bytes to a file and sync it",
            nanos: measure_fsync()?,
        },
        Baseline {
            name: "pipe",
            about: "a line to `cat` and back",
            nanos: measure_pipe()?,
        },
        Baseline {
            name: "tcp",
            about: "a line to another thread and back, over loopback",
            nanos: measure_tcp()?,
        },
        Baseline {
            name: "process",
            about: "start `true` and wait for it",
            nanos: measure_process()?,
        },
    ])
}

/// Returns the best time of many runs, in nanoseconds.
fn best_nanos(runs: u32, mut work: impl FnMut() -> TaskResult<()>) -> TaskResult<f64> {
    let mut least = Duration::MAX;
    for _ in 0..runs {
        let begun = Instant::now();
        work()?;
        least = least.min(begun.elapsed());
    }
    Ok(least.as_secs_f64() * 1e9)
}

fn measure_arithmetic() -> f64 {
    let mut number = black_box(1_u64);
    let nanos = best_nanos(2_000, || {
        for _ in 0..1_000 {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
        number = black_box(number);
        Ok(())
    });
    nanos.unwrap_or(f64::NAN)
}

fn measure_fsync() -> TaskResult<f64> {
    let path = std::env::temp_dir().join(format!("bub-baseline-{}", std::process::id()));
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let nanos = best_nanos(200, || {
        file.write_all(&[b'x'; 300])?;
        Ok(file.sync_data()?)
    });
    fs::remove_file(path)?;
    nanos
}

fn measure_pipe() -> TaskResult<f64> {
    let mut cat = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut to, from) = (
        cat.stdin.take().ok_or("`cat` has no stdin")?,
        cat.stdout.take().ok_or("`cat` has no stdout")?,
    );
    let mut from = BufReader::new(from);
    let mut line = String::new();
    let nanos = best_nanos(5_000, || {
        to.write_all(b"a line as long as a small request, about as many bytes as this one has\n")?;
        line.clear();
        from.read_line(&mut line)?;
        Ok(())
    });
    drop(to);
    cat.wait()?;
    nanos
}

fn measure_tcp() -> TaskResult<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut echo, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    echo.set_nodelay(true)?;
    let echoing = std::thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(count @ 1..) = echo.read(&mut bytes) {
            let _ = echo.write_all(bytes.get(..count).unwrap_or_default());
        }
    });
    let mut bytes = [0; 64];
    let nanos = best_nanos(5_000, || {
        stream.write_all(&[b'x'; 64])?;
        Ok(stream.read_exact(&mut bytes)?)
    });
    drop(stream);
    let _ = echoing.join();
    nanos
}

fn measure_process() -> TaskResult<f64> {
    best_nanos(100, || {
        Command::new("true").status()?;
        Ok(())
    })
}
