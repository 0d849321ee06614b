//! Figures that do not depend on the load of the machine: the memory for opening a long tape, the CPU time of an
//! append, and how the cost of opening, reading, appending and views grows with the tape.
//!
//! Run with `cargo bench -p bub-tape --bench figures`. Linux only, because it reads `/proc`.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a benchmark"
)]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
};

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryId, EntryRange, FileStore, Tape, TapeName, TapeStore,
    ViewOptions, codec,
};
use bub_testkit::bench_output::{cpu_time, is_quick, measure_minimum, print_figure, print_time};
use futures_util::TryStreamExt as _;

const ENTRIES: usize = 1_000_000;
/// Number of entries after the last anchor, for all tape lengths.
const TAIL: usize = 500;
const SHORT_TAIL: usize = 50;
const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];

const BATCHES: u32 = 20_000;

fn main() {
    // Measure memory first: memory that the allocator keeps after the other benchmark would distort it.
    measure_open();
    measure_append();
    for size in SIZES
        .into_iter()
        .filter(|size| !is_quick() || *size <= 10_000)
    {
        measure_growth(size);
    }
}

/// Measures opening, reading, appending and views on a tape of the given length.
fn measure_growth(entries: usize) {
    let root = tempfile::tempdir().unwrap();
    let name = TapeName::for_session("/srv/demo", "cli:local");
    let open = || FileStore::new(root.path(), Durability::Os);
    write_tape(&open().path(&name), entries, SHORT_TAIL);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // The first read builds the index.
    read_the_tail(&runtime, &open(), &name);
    let cost = measure_minimum(30, || {
        read_the_tail(&runtime, &open(), &name);
    });
    print_time(&format!("open_and_read_the_tail_cpu/{entries}"), cost.cpu);
    print_figure(
        &format!("open_and_read_the_tail_bytes/{entries}"),
        cost.read as f64,
        "bytes",
    );
    let tape = Tape::new(Arc::new(open()), name.clone());
    let options = ViewOptions::new();
    let cost = measure_minimum(100, || {
        runtime.block_on(tape.view(&options)).unwrap();
    });
    print_time(&format!("view_cpu/{entries}"), cost.cpu);
    print_figure(&format!("view_bytes/{entries}"), cost.read as f64, "bytes");
    let store = open();
    let cost = measure_minimum(100, || {
        let batch = vec![Entry::message("user", "x".repeat(260)); 10];
        runtime.block_on(store.append(&name, batch)).unwrap();
    });
    print_time(&format!("append_of_ten_cpu/{entries}"), cost.cpu);
    print_figure(
        &format!("append_of_ten_bytes/{entries}"),
        cost.read as f64,
        "bytes",
    );
}

fn read_the_tail(runtime: &tokio::runtime::Runtime, store: &FileStore, tape: &TapeName) -> usize {
    runtime.block_on(async {
        let anchor = store
            .anchors(tape, AnchorQuery::Latest(1))
            .await
            .unwrap()
            .pop()
            .unwrap();
        let entries: Vec<Entry> = store
            .read(tape, EntryRange::starting_at(anchor.position))
            .try_collect()
            .await
            .unwrap();
        entries.len()
    })
}

/// Measures appends of ten entries with 300-byte payloads, from an empty tape to 200,000 entries.
fn measure_append() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let batches: Vec<_> = (0..BATCHES)
        .map(|_| vec![Entry::message("user", "x".repeat(260)); 10])
        .collect();
    let busy = cpu_time();
    for batch in batches {
        runtime.block_on(store.append(&tape, batch)).unwrap();
    }
    print_time(
        "append_of_ten_cpu",
        cpu_time().saturating_sub(busy) / BATCHES,
    );
}

/// Measures the memory for opening a long tape.
fn measure_open() {
    let root = tempfile::tempdir().unwrap();
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let path = FileStore::new(root.path(), Durability::Os).path(&tape);
    write_tape(&path, if is_quick() { ENTRIES / 10 } else { ENTRIES }, TAIL);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for case in ["without_index", "with_index"] {
        reset_peak_memory();
        let start = resident("VmRSS");
        let store = FileStore::new(root.path(), Durability::Os);
        read_the_tail(&runtime, &store, &tape);
        print_figure(
            &format!("memory_of_opening_{case}"),
            (resident("VmHWM") - start) as f64,
            "kB",
        );
    }
}

fn write_tape(path: &Path, entries: usize, tail: usize) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let message = Entry::message("user", "x".repeat(260));
    for number in 0..entries {
        let at_anchor =
            number % 1_000 == 0 && number + tail < entries || number + tail + 1 == entries;
        let mut entry = if at_anchor {
            Entry::anchor("phase", None)
        } else {
            message.clone()
        };
        entry.id = EntryId::new(i64::try_from(number).unwrap() + 1);
        file.write_all(codec::encode(&entry).as_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Returns the value of a line in `/proc/self/status` in kilobytes, or zero on systems without it.
fn resident(line: &str) -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status
        .lines()
        .find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    value
        .and_then(|text| text.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}

fn reset_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}
