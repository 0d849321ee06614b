//! L6: tapes of the Python version give the same entries, statistics and messages.
//!
//! `tests/data/python-home` has tapes in the format of the Python version, and `answers.json` with its results. The script
//! `make.py` there wrote both. `BUB_FIXTURES` is the directory with `tapes/`, which the Python version recorded. Without it,
//! the tests with recordings are ignored.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_tape::{
    Durability, Entry, EntryId, EntryKind, EntryRange, FileStore, MemoryStore, MergeBack, Query,
    Search, Sidecar, Tape, TapeListFilter, TapeName, TapeStore, ViewOptions, codec,
};
use bub_testkit::{fixtures, needs_fixtures};
use serde_json::{Value, json};

use crate::view_support::rejection_reason;

/// A directory with tapes, and the results of the Python version.
struct PythonHome {
    tapes: PathBuf,
    answers: Value,
}

impl PythonHome {
    /// The home in the repository.
    fn bundled() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/python-home");
        Self::new(root.join("tapes"), &root)
    }

    /// The recordings of the Python version.
    fn recorded() -> Self {
        let tapes = fixtures("tapes");
        Self::new(tapes.clone(), &tapes)
    }

    fn new(tapes: PathBuf, root: &Path) -> Self {
        let answers = fs::read(root.join("answers.json")).unwrap();
        let answers = serde_json::from_slice(&answers).unwrap();
        Self { tapes, answers }
    }

    fn tape_name(&self, session: &str) -> TapeName {
        let name = &self.answers["sessions"][session]["tape"];
        TapeName::new(name.as_str().unwrap()).unwrap()
    }

    /// Returns the bytes of a tape.
    fn read(&self, session: &str) -> Vec<u8> {
        let file = format!("{}.jsonl", self.tape_name(session));
        fs::read(self.tapes.join(file)).unwrap()
    }
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
    // The Python version does not show the anchor that opens the view.
    let has_opening = view.entries.first() == view.origin.as_ref();
    json!({
        "tape": tape.name().as_str(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "anchor_list": anchors,
        "messages_after_last_anchor": view.messages[usize::from(has_opening)..],
    })
}

/// S-62: the results are those of the Python version, except for the message of the anchor.
async fn check_results(home: &PythonHome) {
    let (_root, file) = file_store(&home.tapes);
    let memory = memory_store(&home.tapes).await;
    let stores: [Arc<dyn TapeStore>; 2] = [Arc::new(file), Arc::new(memory)];
    let sessions = home.answers["sessions"].as_object().unwrap();
    assert_eq!(sessions.len(), 9, "the structural cases");
    for store in stores {
        for (session, expected) in sessions {
            let tape = Tape::new(Arc::clone(&store), home.tape_name(session));
            assert_eq!(answer(&tape).await, *expected, "{session} in {store:?}");
        }
        let listed = store.list(TapeListFilter::Sessions).await.unwrap();
        assert_eq!(listed.len(), sessions.len());
    }
}

#[tokio::test]
async fn the_python_version_gives_the_same_results() {
    check_results(&PythonHome::bundled()).await;
}

#[needs_fixtures]
#[tokio::test]
async fn the_python_version_gave_the_same_results_for_its_recordings() {
    check_results(&PythonHome::recorded()).await;
}

/// C.1: every line is written back byte for byte, by the codec and by the store.
async fn check_lines(home: &PythonHome) {
    let (_root, store) = file_store(&home.tapes);
    for path in fs::read_dir(&home.tapes)
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

#[tokio::test]
async fn lines_come_back_byte_for_byte() {
    check_lines(&PythonHome::bundled()).await;
}

#[needs_fixtures]
#[tokio::test]
async fn recorded_lines_come_back_byte_for_byte() {
    check_lines(&PythonHome::recorded()).await;
}

/// W-20: the search finds entries that the Python version does not find.
async fn check_search(home: &PythonHome, word: &str) {
    let (_root, store) = file_store(&home.tapes);
    let tape = Tape::new(Arc::new(store), home.tape_name("plain"));
    let results = tape.search(&Search::new(word)).await.unwrap();
    assert_eq!(results.hits.len(), 2);
    assert!(
        results
            .hits
            .iter()
            .all(|hit| hit.exact && hit.snippet.contains(word))
    );
    // Without its context, the user's text is shorter than the answer that repeats it.
    assert!(results.hits[0].entry.id < results.hits[1].entry.id);
}

#[tokio::test]
async fn search_finds_what_the_python_version_missed() {
    check_search(&PythonHome::bundled(), "番茄").await;
}

#[needs_fixtures]
#[tokio::test]
async fn search_finds_what_the_python_version_missed_in_its_recordings() {
    check_search(&PythonHome::recorded(), "你好世界").await;
}

/// The spilled output of a tool is in the sidecar, one chunk after each anchor, and the manifest gives its size.
#[tokio::test]
async fn spilled_output_of_the_python_version_is_complete() {
    let home = PythonHome::bundled();
    let (_root, store) = file_store(&home.tapes);
    let tape =
        Tape::new(Arc::new(store), home.tape_name("spill")).with_sidecars([Sidecar::new("spill")]);
    let sidecar = tape.sidecar("spill").unwrap();
    let entries = sidecar.entries(EntryRange::ALL).await.unwrap();
    let chunks = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::ToolResult);
    let output: String = chunks
        .map(|entry| entry.payload["results"][0].as_str().unwrap())
        .collect();
    let manifest = &entries.last().unwrap().payload["data"];
    assert_eq!(manifest["bytes"], output.len());
    assert_eq!(manifest["lines"], output.lines().count());
    assert_eq!(output.lines().last(), Some("leaf 199"));
}

/// Entries of bub follow those of the Python version: directly, by a handoff, and by a fork that is merged.
#[tokio::test]
async fn a_tape_of_the_python_version_goes_on() {
    let home = PythonHome::bundled();
    for session in ["plain", "tools", "handoff", "spill", "commands"] {
        let (root, store) = file_store(&home.tapes);
        let tape = Tape::new(Arc::new(store), home.tape_name(session));
        let before = home.read(session);
        let count = tape.info().await.unwrap().entries;
        tape.append(Entry::message("user", "and now?"))
            .await
            .unwrap();
        let fork = tape.fork(MergeBack::Yes).await.unwrap();
        let message = Entry::message("assistant", "we harvest");
        fork.tape().append(message).await.unwrap();
        fork.merge().await.unwrap();
        let view = tape.view(&ViewOptions::new()).await.unwrap();
        assert_eq!(rejection_reason(&view.messages), None);
        let last = view.messages.last().unwrap();
        assert_eq!(last["content"], "we harvest", "{session}");
        tape.handoff("phase-3", Some(json!({"summary": "all is ripe"})))
            .await
            .unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let ids: Vec<EntryId> = entries.iter().map(|entry| entry.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{session}: {ids:?}");
        assert!(entries.len() as u64 > count + 2);
        let file = root.path().join(format!("{}.jsonl", tape.name()));
        assert!(fs::read(file).unwrap().starts_with(&before), "{session}");
        let view = tape.view(&ViewOptions::new()).await.unwrap();
        assert_eq!(view.messages.len(), 1, "only the anchor: {session}");
    }
}

/// A file that ends within a line loses this line only, wherever the cut is.
#[tokio::test]
async fn a_torn_tape_of_the_python_version_loses_its_last_line_only() {
    let home = PythonHome::bundled();
    let text = home.read("tools");
    let start_of_last = text[..text.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    let complete = decode(&text[..start_of_last]);
    for cut in (start_of_last + 1..text.len() - 1).step_by(7) {
        let root = tempfile::tempdir().unwrap();
        let name = home.tape_name("tools");
        let file = root.path().join(format!("{name}.jsonl"));
        fs::write(&file, &text[..cut]).unwrap();
        let store = FileStore::new(root.path(), Durability::Os);
        let tape = Tape::new(Arc::new(store), name);
        tape.append(Entry::message("user", "next")).await.unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(entries[..complete.len()], complete, "cut at {cut}");
        assert_eq!(entries.last().unwrap().payload["content"], "next");
        assert!(fs::read(&file).unwrap().starts_with(&text[..start_of_last]));
    }
}

/// Decodes the text of a tape.
fn decode(text: &[u8]) -> Vec<Entry> {
    text.split_inclusive(|byte| *byte == b'\n')
        .filter_map(codec::decode)
        .collect()
}
