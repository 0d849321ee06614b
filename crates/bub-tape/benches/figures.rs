//! What a clock on a busy machine cannot tell: memory for opening a long tape, and processor time of an append.
//!
//! `cargo bench -p bub-tape --bench figures`. Linux only, because it asks `/proc`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    time::{Duration, Instant},
};

use bub_tape::{AnchorSearch, Durability, Entry, EntryId, FileStore, Span, TapeName, TapeStore, codec};
use futures_util::TryStreamExt as _;

const ENTRIES: usize = 1_000_000;
const TAIL: usize = 500;

const BATCHES: u32 = 20_000;

fn main() {
    // Memory first: what the other one leaves to the allocator would hide it.
    opening();
    appending();
}

/// Batches of ten, 300-byte payloads, from an empty tape to 200,000 entries.
fn appending() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batches: Vec<_> = (0..BATCHES).map(|_| vec![Entry::message("user", "x".repeat(260)); 10]).collect();
    let (started, processor) = (Instant::now(), processor_time());
    for batch in batches {
        runtime.block_on(store.append(&tape, batch)).unwrap();
    }
    let (wall, busy) = (started.elapsed() / BATCHES, processor_time().saturating_sub(processor) / BATCHES);
    let rate = |time: Duration| 10.0 / time.as_secs_f64();
    println!(
        "append of ten: {busy:?} of processor time ({:.0} entries/s), {wall:?} by the clock ({:.0} entries/s)",
        rate(busy),
        rate(wall)
    );
}

/// How long this thread has been running, as opposed to waiting for its turn.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn opening() {
    let root = tempfile::tempdir().unwrap();
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let path = FileStore::new(root.path(), Durability::Os).path(&tape);
    write_tape(&path);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for what in ["without index", "with index"] {
        forget_the_highest();
        let start = resident("VmRSS");
        let store = FileStore::new(root.path(), Durability::Os);
        let read = runtime.block_on(async {
            let anchor = store.anchors(&tape, AnchorSearch::Latest(1)).await.unwrap().pop().unwrap();
            let entries: Vec<Entry> =
                store.read(&tape, Span::from(anchor.position)).try_collect().await.unwrap();
            entries.len()
        });
        let (after, highest) = (resident("VmRSS"), resident("VmHWM"));
        println!(
            "open and read the tail, {what}: {read} entries, start {start} kB, after +{} kB, highest +{} kB",
            after - start,
            highest - start
        );
    }
}

fn write_tape(path: &std::path::Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let message = Entry::message("user", "x".repeat(260));
    for number in 0..ENTRIES {
        let at_anchor = number % 1_000 == 0 && number + TAIL < ENTRIES || number + TAIL + 1 == ENTRIES;
        let mut entry = if at_anchor { Entry::anchor("phase", None) } else { message.clone() };
        entry.id = EntryId::new(i64::try_from(number).unwrap() + 1);
        file.write_all(codec::encode(&entry).as_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// A line of `/proc/self/status`, in kilobytes; zero elsewhere.
fn resident(line: &str) -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    value.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn forget_the_highest() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}
