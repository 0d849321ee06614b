//! Benchmarks of views and searches on the file store.
//!
//! Run with `cargo bench -p bub-tape --bench view`. The searched tape has 100,000 entries (45 MB), and ten of its
//! messages contain the word `zebrafish`. The views contain 500 entries after the last anchor, on a short and on a long
//! tape.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a benchmark"
)]

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use bub_tape::{
    Durability, Entry, EntryId, EntryKind, FileStore, Query, Search, Tape, TapeName, ViewOptions,
    codec,
};
use divan::Bencher;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const WORDS: &str = "the agent reads a file and runs the tests then writes a patch for config parser error handling in \
    module store tape session channel queue buffer token model reply user asks about weather deploy docker compose \
    network socket timeout retry";
const TAIL: usize = 500;

fn main() {
    divan::main();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap()
}

/// A generator of pseudorandom numbers with a fixed sequence.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }

    fn text(&mut self, size: usize) -> String {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut text = String::new();
        while text.len() < size {
            text.push_str(words[self.next(words.len())]);
            text.push(' ');
        }
        text.truncate(size);
        text
    }
}

fn entry(number: usize, count: usize, noise: &mut Noise) -> Entry {
    let rare = (0..10).any(|part| number == (2 * part + 1) * count / 20);
    if rare {
        return Entry::message("user", format!("zebrafish {}", noise.text(290)));
    }
    match number % 10 {
        1 | 5 => Entry::message("user", noise.text(300)),
        2 | 6 => Entry::message("assistant", noise.text(300)),
        3 => {
            let arguments = json!({"cmd": noise.text(150)}).to_string();
            let function = json!({"name": "bash", "arguments": arguments});
            Entry::tool_call(vec![
                json!({"id": format!("call_{number}"), "type": "function", "function": function}),
            ])
        }
        4 => Entry::tool_result(vec![noise.text(300).into()]),
        step => Entry::event(
            "loop.step",
            Some(json!({"step": step, "status": "ok", "note": noise.text(200)})),
        ),
    }
}

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn tape_of(entries: usize) -> Tape {
    Tape::new(Arc::new(shared_store(entries).1.clone()), name())
}

fn directory_of(entries: usize) -> PathBuf {
    shared_store(entries).0.path().to_path_buf()
}

/// Returns a store with a tape of the given length. It is created once per length.
fn shared_store(entries: usize) -> &'static (TempDir, FileStore) {
    static SHORT: OnceLock<(TempDir, FileStore)> = OnceLock::new();
    static MIDDLE: OnceLock<(TempDir, FileStore)> = OnceLock::new();
    static LONG: OnceLock<(TempDir, FileStore)> = OnceLock::new();
    let cell = match entries {
        0..=10_000 => &SHORT,
        10_001..=100_000 => &MIDDLE,
        _ => &LONG,
    };
    let name = name();
    cell.get_or_init(|| {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore::new(root.path(), Durability::Os);
        let mut file = BufWriter::new(File::create(store.path(&name)).unwrap());
        let mut noise = Noise(1);
        for number in 0..entries {
            let anchor =
                number % 1_000 == 0 && number + TAIL < entries || number + TAIL + 1 == entries;
            let mut line = if anchor {
                Entry::anchor("phase", Some(json!({"summary": noise.text(100)})))
            } else {
                entry(number, entries, &mut noise)
            };
            line.id = EntryId::new(i64::try_from(number).unwrap() + 1);
            line.meta
                .insert("run_id".to_owned(), format!("run-{}", number / 10).into());
            file.write_all(codec::encode(&line).as_bytes()).unwrap();
        }
        file.flush().unwrap();
        runtime().block_on(store.reindex(&name)).unwrap();
        (root, store)
    })
}

#[divan::bench(args = [1_000, 1_000_000])]
fn view_of_500_entries(bencher: Bencher, entries: usize) {
    let (tape, runtime) = (tape_of(entries), runtime());
    let options = ViewOptions::new();
    bencher.bench_local(|| runtime.block_on(tape.view(&options)).unwrap());
}

/// Opens a store and reads its statistics and a view, as at the start of a session.
#[divan::bench(args = [1_000, 1_000_000])]
fn open_and_view(bencher: Bencher, entries: usize) {
    let (known, runtime) = (tape_of(entries), runtime());
    let root = directory_of(entries);
    let options = ViewOptions::new();
    bencher.bench_local(|| {
        let tape = Tape::new(
            Arc::new(FileStore::new(&root, Durability::Os)),
            known.name().clone(),
        );
        runtime.block_on(async {
            tape.info().await.unwrap();
            tape.view(&options).await.unwrap()
        })
    });
}

/// Searches for a rare, a missing and a frequent word, in other case, in Chinese and with quotes.
#[divan::bench(args = ["zebrafish", "ZebraFish", "xylophone", "weather", "斑马鱼", "say \"hi\""])]
fn search_exactly(bencher: Bencher, text: &str) {
    let (tape, runtime) = (tape_of(100_000), runtime());
    let search = Search::new(text).exact_only();
    bencher.bench_local(|| runtime.block_on(tape.search(&search)).unwrap());
}

#[divan::bench(args = ["zebrafish", "zebrafsh", "xylophone", "wether", "tset", "docker zebrafsh", "斑马鱼类", "qthex", "ingent"])]
fn search_nearly(bencher: Bencher, text: &str) {
    let (tape, runtime) = (tape_of(100_000), runtime());
    let search = Search::new(text);
    bencher.bench_local(|| runtime.block_on(tape.search(&search)).unwrap());
}

#[divan::bench]
fn query_events_of_the_whole_tape(bencher: Bencher) {
    let (tape, runtime) = (tape_of(100_000), runtime());
    bencher.bench_local(|| {
        runtime
            .block_on(tape.query_all(Query::new().kinds([EntryKind::Anchor])))
            .unwrap()
    });
}
