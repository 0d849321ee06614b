//! Figures of the search index: time and size of indexing, and the time of searches in one long session and in a home
//! with many tapes.
//!
//! Run with `cargo bench -p bub-tape --bench search`. With `-- --quick`, the tapes are a tenth as long. The words have
//! the frequencies of natural language.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a benchmark"
)]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use bub_tape::{
    Durability, Entry, EntryId, FileStore, Search, TapeListFilter, TapeName, TapeStore, codec,
};
use bub_testkit::bench_output::{cpu_time, is_quick, measure_minimum, print_figure, print_time};
use serde_json::json;
use tokio::runtime::Runtime;

/// A rare word, a missing word, a misspelled word, frequent words, a question and a phrase. The generator writes
/// `zebrafish` into one of 100,000 entries.
const TEXTS: [(&str, &str); 6] = [
    ("rare", "zebrafish"),
    ("missing", "xylophone"),
    ("misspelled", "zebrafsh"),
    ("frequent", "taba tabe tabi"),
    (
        "question",
        "When did the zebrafish decide about taba and the lotobi?",
    ),
    ("phrase", "\"taba tabe\""),
];

fn main() {
    let scale = if is_quick() { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    measure("session", &runtime, 1, 1_000_000 / scale);
    measure("home", &runtime, 10_000 / scale, 450);
}

/// A generator of pseudorandom numbers with a fixed sequence.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below 1. Small numbers are frequent, as the ranks of words in natural language are.
    fn zipf(&mut self, count: usize) -> usize {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((count as f64).powf(uniform) - 1.0) as usize
    }
}

/// Returns words of two to six syllables.
fn vocabulary() -> Vec<String> {
    let syllables: Vec<String> = "tblmnprskd"
        .chars()
        .flat_map(|consonant| {
            "aeiou"
                .chars()
                .map(move |vowel| format!("{consonant}{vowel}"))
        })
        .collect();
    let word = |number: usize| {
        let (mut rest, mut word) = (number, "ta".to_owned());
        word.clear();
        for _ in 0..2 + number % 3 {
            word.push_str(&syllables[rest % syllables.len()]);
            rest = rest / syllables.len() + 7;
        }
        word
    };
    let mut words: Vec<String> = (0..40_000).map(word).collect();
    words[..3].clone_from_slice(&["taba".to_owned(), "tabe".to_owned(), "tabi".to_owned()]);
    words
}

fn text(noise: &mut Noise, words: &[String], size: usize) -> String {
    let mut text = String::new();
    while text.len() < size {
        text.push_str(&words[noise.zipf(words.len())]);
        text.push(' ');
    }
    text
}

fn entry(number: usize, noise: &mut Noise, words: &[String]) -> Entry {
    let text = text(noise, words, 300);
    let date = format!(
        "2026-{:02}-{:02}T12:00:00+00:00",
        1 + number / 28 % 12,
        1 + number % 28
    );
    let entry = match number % 10 {
        _ if number % 100_000 == 77 => Entry::message("user", format!("zebrafish {text}")),
        3 => {
            let arguments = json!({"cmd": text}).to_string();
            let function = json!({"name": "bash", "arguments": arguments});
            Entry::tool_call(vec![
                json!({"id": format!("call_{number}"), "type": "function", "function": function}),
            ])
        }
        4 => Entry::tool_result(vec![text.into()]),
        5 => Entry::event(
            "loop.step",
            Some(json!({"step": number, "status": "ok", "note": text})),
        ),
        even if even % 2 == 0 => Entry::message("user", text),
        _ => Entry::message("assistant", text),
    };
    entry
        .with_date(date)
        .with_meta("run_id", format!("run-{}", number / 10))
}

fn write_tape(path: &Path, entries: usize, first: usize, words: &[String]) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let mut noise = Noise(first as u64 * 7919 + 1);
    for number in 0..entries {
        let mut entry = entry(first + number, &mut noise, words);
        entry.id = EntryId::new(i64::try_from(number).unwrap() + 1);
        file.write_all(codec::encode(&entry).as_bytes()).unwrap();
    }
    file.flush().unwrap();
}

fn directory_size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().metadata().unwrap())
        .filter(fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

fn measure(case: &str, runtime: &Runtime, tapes: usize, entries: usize) {
    let root = tempfile::tempdir().unwrap();
    let words = vocabulary();
    for number in 0..tapes {
        let name = TapeName::for_session("/srv/demo", &format!("cli:{number}"));
        let path = FileStore::new(root.path(), Durability::Os).path(&name);
        write_tape(&path, entries, number * entries, &words);
    }
    let text_bytes = directory_size(root.path());
    let search = |text: &str| {
        // A new store for each search, as in a new process.
        let store = FileStore::new(root.path(), Durability::Os);
        runtime.block_on(async {
            let tapes = store.list(TapeListFilter::Sessions).await.unwrap();
            Search::new(text)
                .limit(10)
                .run(&store, &tapes)
                .await
                .unwrap()
        })
    };
    let busy = cpu_time();
    // A search indexes a limited number of bytes.
    while search("zebrafish").unindexed_bytes > 0 {}
    let indexing =
        cpu_time().saturating_sub(busy).as_secs_f64() * 1e6 / (text_bytes as f64 / 1024.0);
    print_figure(&format!("search_index_cpu_per_kb/{case}"), indexing, "µs");
    let index_bytes = directory_size(&root.path().join(".bub/search"));
    let share = 100.0 * index_bytes as f64 / text_bytes as f64;
    print_figure(&format!("search_index_share/{case}"), share, "%");
    for (name, text) in TEXTS {
        let cost = measure_minimum(10, || {
            search(text);
        });
        print_time(&format!("search_{name}/{case}"), cost.wall);
        print_time(&format!("search_{name}_cpu/{case}"), cost.cpu);
    }
}
