//! Benchmarks of store operations. They show that the cost does not grow with the tape.
//!
//! Run with `cargo bench -p bub-tape`. The large tape has a million entries (about 400 MB in the temporary directory).
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::{
    fs::File,
    io::{BufWriter, Write},
    sync::{Arc, OnceLock},
};

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryId, EntryRange, FileStore, Tape, TapeName, TapeStore,
    codec,
};
use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use futures_util::TryStreamExt as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Number of entries after the last anchor, for all tape lengths.
const TAIL: usize = 500;
const PAYLOAD: usize = 300;
const SIZES: [usize; 2] = [1_000, 1_000_000];

fn main() {
    divan::main();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap()
}

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn batch(size: usize) -> Vec<Entry> {
    vec![Entry::message("user", "x".repeat(PAYLOAD - 40)); size]
}

/// Returns a store with an indexed tape of the given length. It is created once and shared by all benchmarks.
fn tape_of(entries: usize) -> &'static FileStore {
    static SMALL: OnceLock<(TempDir, FileStore)> = OnceLock::new();
    static LARGE: OnceLock<(TempDir, FileStore)> = OnceLock::new();
    let cell = if entries > 10_000 { &LARGE } else { &SMALL };
    let (_, store) = cell.get_or_init(|| {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore::new(root.path(), Durability::Os);
        let mut file = BufWriter::new(File::create(store.path(&name())).unwrap());
        let mut entry = batch(1).pop().unwrap();
        for number in 0..entries {
            let at_anchor =
                number % 1_000 == 0 && number + TAIL < entries || number + TAIL + 1 == entries;
            let mut line = if at_anchor {
                Entry::anchor("phase", None)
            } else {
                entry.clone()
            };
            line.id = EntryId::new(i64::try_from(number).unwrap() + 1);
            file.write_all(codec::encode(&line).as_bytes()).unwrap();
            entry.id = line.id;
        }
        file.flush().unwrap();
        runtime().block_on(store.reindex(&name())).unwrap();
        (root, store)
    });
    store
}

/// Returns a new store for the shared tape, without open files, as in a new process.
fn reopened(entries: usize) -> FileStore {
    let path = tape_of(entries).path(&name());
    FileStore::new(path.parent().unwrap(), Durability::Os)
}

#[divan::bench(args = SIZES, sample_count = 50, sample_size = 200)]
fn append_batches_of_ten(bencher: Bencher, entries: usize) {
    // Append to a copy, because the other benchmarks need the tail at its length.
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    let (runtime, name) = (runtime(), name());
    std::fs::copy(tape_of(entries).path(&name), store.path(&name)).unwrap();
    bencher
        .counter(ItemsCount::new(10_usize))
        .with_inputs(|| batch(10))
        .bench_values(|batch| runtime.block_on(store.append(&name, batch)).unwrap());
}

#[divan::bench(sample_count = 200)]
fn append_batches_of_ten_with_fsync(bencher: Bencher) {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Always);
    let (runtime, name) = (runtime(), name());
    bencher
        .counter(ItemsCount::new(10_usize))
        .with_inputs(|| batch(10))
        .bench_values(|batch| runtime.block_on(store.append(&name, batch)).unwrap());
}

/// Returns a store that adds a hash chain to entries if `is_chained`.
fn chained_store(root: &TempDir, is_chained: bool) -> FileStore {
    let store = FileStore::new(root.path(), Durability::Os);
    if is_chained {
        store.with_chain()
    } else {
        store
    }
}

/// The difference between the two is the cost of the hash chain.
#[divan::bench(args = [false, true], sample_count = 200, sample_size = 200)]
fn append_with_hash_chain(bencher: Bencher, is_chained: bool) {
    let root = tempfile::tempdir().unwrap();
    let store = chained_store(&root, is_chained);
    let (runtime, name) = (runtime(), name());
    bencher
        .with_inputs(|| batch(1))
        .bench_values(|batch| runtime.block_on(store.append(&name, batch)).unwrap());
}

#[divan::bench(sample_count = 20)]
fn verify_hash_chain(bencher: Bencher) {
    let root = tempfile::tempdir().unwrap();
    let store = chained_store(&root, true);
    let (runtime, name) = (runtime(), name());
    for _ in 0..100 {
        runtime.block_on(store.append(&name, batch(1_000))).unwrap();
    }
    let bytes = std::fs::metadata(store.path(&name)).unwrap().len();
    bencher
        .counter(BytesCount::new(bytes))
        .bench(|| runtime.block_on(store.verify_chain(&name, None)).unwrap());
}

/// Opens a store and reads what a view needs: the last anchor and all entries after it.
#[divan::bench(args = SIZES, sample_count = 300)]
fn open_and_read_the_tail(bencher: Bencher, entries: usize) {
    let (runtime, name) = (runtime(), name());
    let _ = tape_of(entries);
    bencher
        .counter(ItemsCount::new(TAIL))
        .with_inputs(|| reopened(entries))
        .bench_refs(|store| {
            runtime.block_on(async {
                let anchor = store
                    .anchors(&name, AnchorQuery::Latest(1))
                    .await
                    .unwrap()
                    .pop()
                    .unwrap();
                let entries: Vec<Entry> = store
                    .read(&name, EntryRange::starting_at(anchor.position))
                    .try_collect()
                    .await
                    .unwrap();
                entries.len()
            })
        });
}

#[divan::bench(args = SIZES, sample_count = 300)]
fn open_and_info(bencher: Bencher, entries: usize) {
    let runtime = runtime();
    let _ = tape_of(entries);
    bencher
        .with_inputs(|| Tape::new(Arc::new(reopened(entries)), name()))
        .bench_refs(|tape| runtime.block_on(tape.info()).unwrap());
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn rebuild_the_index(bencher: Bencher) {
    let (store, runtime, name) = (tape_of(1_000_000), runtime(), name());
    let bytes = std::fs::metadata(store.path(&name)).unwrap().len();
    bencher
        .counter(BytesCount::new(bytes))
        .bench(|| runtime.block_on(store.reindex(&name)).unwrap());
}
