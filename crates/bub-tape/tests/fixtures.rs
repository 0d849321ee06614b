//! Tapes written by the Python version give the same entries, statistics and messages.
//!
//! `BUB_FIXTURES` is the directory that contains `tapes/` and `tapes/answers.json`, the results of the Python version
//! for each tape. Without it, the tests are ignored. They have a separate binary, because only another test harness
//! can ignore them at run time.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "tests/it uses the rest")]
#[path = "it/view_support.rs"]
mod view_support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bub_tape::{
    Durability, Entry, EntryRange, FileStore, MemoryStore, Query, Search, Tape, TapeListFilter,
    TapeName, TapeStore, ViewOptions, codec,
};
use serde_json::{Value, json};
use view_support::rejection_reason;

fn main() -> ExitCode {
    bub_testkit::run_fixture_tests(&[
        ("the_python_version_gives_the_same_results", |root| {
            block_on(the_python_version_gives_the_same_results(root));
        }),
        ("lines_come_back_byte_for_byte", |root| {
            block_on(lines_come_back_byte_for_byte(root));
        }),
        ("search_finds_what_the_python_version_missed", |root| {
            block_on(search_finds_what_the_python_version_missed(root));
        }),
    ])
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(test);
}

fn read_fixtures(root: &Path) -> (PathBuf, Value) {
    let tapes = root.join("tapes");
    let answers = fs::read(tapes.join("answers.json")).unwrap();
    (tapes, serde_json::from_slice(&answers).unwrap())
}

/// Creates a store with copies of the tapes, because opening a tape can write files next to it.
fn file_store(tapes: &Path) -> (tempfile::TempDir, FileStore) {
    let root = tempfile::tempdir().unwrap();
    for file in fs::read_dir(tapes).unwrap().map(Result::unwrap) {
        fs::write(
            root.path().join(file.file_name()),
            fs::read(file.path()).unwrap(),
        )
        .unwrap();
    }
    let store = FileStore::new(root.path(), Durability::Os);
    (root, store)
}

async fn memory_store(tapes: &Path) -> MemoryStore {
    let store = MemoryStore::new();
    for file in fs::read_dir(tapes)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let Some(stem) = file
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .strip_suffix(".jsonl")
        else {
            continue;
        };
        let name = TapeName::new(stem).unwrap();
        store
            .append(&name, decode(&fs::read(&file).unwrap()))
            .await
            .unwrap();
    }
    store
}

/// Returns our results for a tape, in the format of `answers.json`.
async fn answer(tape: &Tape) -> Value {
    let info = tape.info().await.unwrap();
    let anchors = tape.anchors(usize::MAX).await.unwrap();
    let anchors: Vec<Value> = anchors
        .into_iter()
        .map(|anchor| Value::Object(anchor.payload))
        .collect();
    let view = tape.view(&ViewOptions::new()).await.unwrap();
    assert_eq!(rejection_reason(&view.messages), None);
    assert!(
        view.messages[0]["content"]
            .as_str()
            .unwrap()
            .starts_with("[Anchor created: ")
    );
    json!({
        "tape": tape.name().as_str(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "anchor_list": anchors,
        "messages_after_last_anchor": view.messages[1..],
    })
}

/// S-62: the results are those of the Python version, except for the message of the anchor.
async fn the_python_version_gives_the_same_results(root: &Path) {
    let (tapes, answers) = read_fixtures(root);
    let (_root, file) = file_store(&tapes);
    let stores: [Arc<dyn TapeStore>; 2] = [Arc::new(file), Arc::new(memory_store(&tapes).await)];
    for store in stores {
        for (session, expected) in answers["sessions"].as_object().unwrap() {
            let name = TapeName::new(expected["tape"].as_str().unwrap()).unwrap();
            let tape = Tape::new(Arc::clone(&store), name);
            assert_eq!(answer(&tape).await, *expected, "{session} in {store:?}");
        }
        let listed = store.list(TapeListFilter::Sessions).await.unwrap();
        assert_eq!(listed.len(), answers["sessions"].as_object().unwrap().len());
    }
}

/// C.1: every line is written back byte for byte, by the codec and by the store.
async fn lines_come_back_byte_for_byte(root: &Path) {
    let (tapes, _) = read_fixtures(root);
    let (_root, store) = file_store(&tapes);
    for path in fs::read_dir(&tapes)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let text = fs::read_to_string(&path).unwrap();
        let Some(stem) = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .strip_suffix(".jsonl")
        else {
            continue;
        };
        for line in text.split_inclusive('\n') {
            assert_eq!(
                codec::encode(&codec::decode(line.as_bytes()).unwrap()),
                line,
                "{}",
                path.display()
            );
        }
        let tape = Tape::new(Arc::new(store.clone()), TapeName::new(stem).unwrap());
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(entries.iter().map(codec::encode).collect::<String>(), text);
        assert_eq!(tape.query_all(Query::new()).await.unwrap(), entries);
    }
}

/// W-20: the search finds entries that the Python version does not find.
async fn search_finds_what_the_python_version_missed(root: &Path) {
    let (tapes, answers) = read_fixtures(root);
    let (_root, store) = file_store(&tapes);
    let name = TapeName::new(answers["sessions"]["plain"]["tape"].as_str().unwrap()).unwrap();
    let tape = Tape::new(Arc::new(store), name);
    let results = tape.search(&Search::new("你好世界")).await.unwrap();
    assert_eq!(results.hits.len(), 2);
    assert!(
        results
            .hits
            .iter()
            .all(|hit| hit.exact && hit.snippet.contains("你好世界"))
    );
    assert!(results.hits[0].entry.id > results.hits[1].entry.id);
}

/// Decodes the text of a tape.
fn decode(text: &[u8]) -> Vec<Entry> {
    text.split_inclusive(|byte| *byte == b'\n')
        .filter_map(codec::decode)
        .collect()
}
