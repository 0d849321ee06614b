//! Tapes that other writers wrote, tore, replaced or left incomplete.

use std::{fs, io::Write as _, path::Path, sync::Arc};

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryId, EntryRange, FileStore, Position, Tape, TapeErrorKind,
    TapeListFilter, TapeName, TapeStore,
};
use bub_testkit::Faults;
use futures_util::TryStreamExt as _;
use serde_json::json;
use tempfile::TempDir;

struct RepairFixture {
    root: TempDir,
    store: FileStore,
}

fn fixture() -> RepairFixture {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    RepairFixture { root, store }
}

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

/// Returns a line in the format of the Python version.
fn python_line(id: i64, text: &str) -> String {
    format!(
        "{{\"id\": {id}, \"kind\": \"message\", \"payload\": {{\"role\": \"user\", \"content\": \"{text}\"}}, \"meta\": {{}}, \
         \"date\": \"2026-11-15T18:09:55.{id:06}+00:00\"}}\n"
    )
}

impl RepairFixture {
    fn write(&self, bytes: impl AsRef<[u8]>) {
        fs::write(self.store.path(&name()), bytes).unwrap();
    }

    fn add(&self, bytes: impl AsRef<[u8]>) {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.store.path(&name()))
            .unwrap();
        file.write_all(bytes.as_ref()).unwrap();
    }

    async fn append(&self, text: &str) -> Vec<EntryId> {
        self.store
            .append(&name(), vec![Entry::message("user", text)])
            .await
            .unwrap()
            .ids
    }

    async fn texts(&self) -> Vec<String> {
        let entries: Vec<Entry> = self
            .store
            .read(&name(), EntryRange::ALL)
            .try_collect()
            .await
            .unwrap();
        entries
            .iter()
            .filter_map(|entry| entry.payload.get("content")?.as_str().map(str::to_owned))
            .collect()
    }

    async fn count(&self) -> u64 {
        self.store.summary(&name()).await.unwrap().entries
    }

    fn own(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.path().join(".bub").join(directory)) else {
            return Vec::new();
        };
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

// W-3 (a), W-16: an incomplete line is not joined with the next entry. It is kept in a separate file and reported.
#[tokio::test]
async fn a_torn_line_is_cut_off_kept_and_reported() {
    let fixture = fixture();
    fixture.write(python_line(1, "one") + &python_line(2, "two")[..40]);
    assert_eq!(fixture.texts().await, ["one"]);
    assert_eq!(
        fs::read(fixture.store.path(&name())).unwrap().len(),
        python_line(1, "one").len() + 40,
        "a reader repaired"
    );
    assert_eq!(fixture.append("three").await, [EntryId::new(3)]);
    assert_eq!(fixture.texts().await, ["one", "three"]);
    let entries: Vec<Entry> = fixture
        .store
        .read(&name(), EntryRange::ALL)
        .try_collect()
        .await
        .unwrap();
    let report = &entries[1];
    assert_eq!(
        (report.name(), report.is_in_context()),
        (Some("tape.repaired"), false)
    );
    let kept = report.data().unwrap()["kept"].as_str().unwrap();
    assert_eq!(
        fs::read_to_string(kept).unwrap(),
        python_line(2, "two")[..40]
    );
}

// W-3 (b): a session continues after a line was torn inside a character.
#[tokio::test]
async fn a_line_torn_inside_a_character_bricks_nothing() {
    let fixture = fixture();
    let torn = python_line(2, "你好").into_bytes();
    let cut = torn
        .windows(3)
        .position(|window| window == "你".as_bytes())
        .unwrap()
        + 1;
    fixture.write([python_line(1, "one").as_bytes(), &torn[..cut]].concat());
    assert_eq!(fixture.texts().await, ["one"]);
    fixture.append("two").await;
    assert_eq!(fixture.texts().await, ["one", "two"]);
}

// C.2: a missing final newline is not damage.
#[tokio::test]
async fn an_entry_without_final_newline_is_read_and_completed() {
    let fixture = fixture();
    fixture.write(python_line(1, "one") + python_line(2, "two").trim_end());
    assert_eq!((fixture.texts().await.len(), fixture.count().await), (2, 2));
    assert_eq!(fixture.append("three").await, [EntryId::new(3)]);
    assert_eq!(fixture.texts().await, ["one", "two", "three"]);
    assert!(fixture.own("torn").is_empty());
    assert_eq!(
        fs::read_to_string(fixture.store.path(&name()))
            .unwrap()
            .lines()
            .count(),
        3
    );
}

// C.2, W-16: duplicate and skipped ids of writers without locks are read unchanged. New ids follow the highest one.
#[tokio::test]
async fn duplicate_and_jumping_ids_are_continued_from_the_highest() {
    let fixture = fixture();
    fixture.write(
        [(1, "a"), (9, "b"), (9, "c"), (4, "d")]
            .map(|(id, text)| python_line(id, text))
            .concat(),
    );
    assert_eq!(fixture.texts().await, ["a", "b", "c", "d"]);
    assert_eq!(fixture.append("e").await, [EntryId::new(10)]);
    let anchors = fixture
        .store
        .anchors(&name(), AnchorQuery::All)
        .await
        .unwrap();
    assert!(anchors.is_empty());
    let fetched = fixture
        .store
        .fetch(&name(), &[EntryId::new(10)])
        .await
        .unwrap();
    assert_eq!(fetched.len(), 1);
}

// C.2: all ways of reading skip invalid lines.
#[tokio::test]
async fn bad_lines_are_skipped_and_not_counted() {
    let fixture = fixture();
    let bad: &[u8] = b"garbage\n\n{\"id\": 2}\n\xff\xfe\n{\"id\": 3, \"kind\": \"x\", \"payload\": {}, \"meta\": {\"a\": \"\xe4\"}, \"date\": \"d\"}\n";
    fixture.write(
        [
            python_line(1, "one").as_bytes(),
            bad,
            python_line(5, "two").as_bytes(),
        ]
        .concat(),
    );
    assert_eq!((fixture.texts().await.len(), fixture.count().await), (2, 2));
    let backwards: Vec<Entry> = fixture
        .store
        .read(&name(), EntryRange::ALL.newest_first())
        .try_collect()
        .await
        .unwrap();
    assert_eq!(backwards.len(), 2);
}

// L6: the Python version may write between two of our appends.
#[tokio::test]
async fn entries_of_another_writer_are_noticed() {
    let fixture = fixture();
    fixture.append("ours").await;
    fixture.add(python_line(2, "theirs"));
    assert_eq!((fixture.texts().await.len(), fixture.count().await), (2, 2));
    assert_eq!(fixture.append("ours again").await, [EntryId::new(3)]);
    assert_eq!(fixture.texts().await, ["ours", "theirs", "ours again"]);
}

// W-12: a tape that was reset and has grown again is not confused with its old content.
#[tokio::test]
async fn a_tape_replaced_by_another_process_is_noticed() {
    let fixture = fixture();
    for number in 0..50 {
        fixture
            .store
            .append(&name(), vec![Entry::anchor(&format!("old{number}"), None)])
            .await
            .unwrap();
    }
    assert_eq!(fixture.count().await, 50);
    fixture.store.reindex(&name()).await.unwrap();
    // The Python version deletes the tape and writes it again. Here it becomes longer than before.
    fs::remove_file(fixture.store.path(&name())).unwrap();
    assert_eq!(fixture.count().await, 0);
    let lines: String = (1..=100)
        .map(|id| python_line(id, &format!("new{id}")))
        .collect();
    fixture.write(&lines);
    assert_eq!(
        (fixture.count().await, fixture.texts().await.len()),
        (100, 100)
    );
    assert!(
        fixture
            .store
            .anchors(&name(), AnchorQuery::All)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(fixture.append("next").await, [EntryId::new(101)]);
    // The length and the inode are unchanged; only the content differs.
    fixture.write(lines.replace("new", "NEW"));
    assert_eq!(fixture.append("other").await.len(), 1);
    assert!(fixture.texts().await[0].starts_with("NEW"));
}

// W-12: other handles in this process see a reset immediately.
#[tokio::test]
async fn a_reset_is_seen_by_other_handles() {
    let fixture = fixture();
    let other = RepairFixture {
        root: tempfile::tempdir().unwrap(),
        store: FileStore::new(fixture.root.path(), Durability::Os),
    };
    fixture.append("old").await;
    assert_eq!(other.count().await, 1);
    Tape::new(Arc::new(fixture.store.clone()), name())
        .reset(false)
        .await
        .unwrap();
    assert_eq!(other.append("new").await, [EntryId::new(3)]);
    assert_eq!(
        (other.texts().await, fixture.texts().await),
        (vec!["new".to_owned()], vec!["new".to_owned()])
    );
    assert_eq!((other.count().await, fixture.count().await), (3, 3));
}

// L2: derived files may be deleted at any time.
#[tokio::test]
async fn deleting_everything_derived_changes_no_answer() {
    let fixture = fixture();
    for number in 0..300 {
        let batch = vec![
            Entry::anchor(&format!("a{}", number % 7), None),
            Entry::message("user", "x".repeat(300)),
        ];
        fixture.store.append(&name(), batch).await.unwrap();
        if number % 50 == 0 {
            let _ = fs::remove_dir_all(fixture.root.path().join(".bub/index"));
        }
    }
    let ask = async |store: &FileStore| {
        (
            store.summary(&name()).await.unwrap(),
            store.anchors(&name(), AnchorQuery::All).await.unwrap(),
        )
    };
    let before = ask(&fixture.store).await;
    assert_eq!((before.0.entries, before.1.len()), (600, 300));
    let _ = fs::remove_dir_all(fixture.root.path().join(".bub/index"));
    assert_eq!(ask(&fixture.store).await, before);
    fs::remove_dir_all(fixture.root.path().join(".bub")).unwrap();
    let fresh = FileStore::new(fixture.root.path(), Durability::Os);
    assert_eq!(ask(&fresh).await, before);
    // An index with wrong content is ignored.
    fs::create_dir_all(fixture.root.path().join(".bub/index")).unwrap();
    fs::write(
        fixture
            .root
            .path()
            .join(format!(".bub/index/{}.idx", name())),
        "{\"version\": 1}",
    )
    .unwrap();
    assert_eq!(
        ask(&FileStore::new(fixture.root.path(), Durability::Os)).await,
        before
    );
}

// L5: all writers extend the index on disk, so that it covers almost the complete tape.
#[tokio::test]
async fn the_index_follows_many_writers() {
    let fixture = fixture();
    let other = FileStore::new(fixture.root.path(), Durability::Os);
    for number in 0..400 {
        let store = if number % 3 == 0 {
            &other
        } else {
            &fixture.store
        };
        let batch = vec![
            Entry::anchor(&number.to_string(), None),
            Entry::message("user", "x".repeat(500)),
        ];
        store.append(&name(), batch).await.unwrap();
    }
    for store in [
        &fixture.store,
        &other,
        &FileStore::new(fixture.root.path(), Durability::Os),
    ] {
        let marks = store.anchors(&name(), AnchorQuery::All).await.unwrap();
        assert!(
            marks
                .iter()
                .map(|mark| mark.name.clone())
                .eq((0..400).map(|number| number.to_string()))
        );
        assert_eq!(store.summary(&name()).await.unwrap().entries, 800);
    }
}

// Reading creates no files.
#[tokio::test]
async fn reading_creates_no_files() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path().join("tapes"), Durability::Os);
    assert_eq!(store.summary(&name()).await.unwrap().entries, 0);
    assert!(
        store
            .list(TapeListFilter::Sessions)
            .await
            .unwrap()
            .is_empty()
    );
    let none: Vec<Entry> = store
        .read(&name(), EntryRange::after(Position::new(77)))
        .try_collect()
        .await
        .unwrap();
    assert!(none.is_empty() && !root.path().join("tapes").exists());
}

// W-15: a tape that cannot be read is an error, not an empty tape.
#[tokio::test]
async fn a_directory_that_cannot_be_read_is_not_an_empty_tape() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("tapes"), "a file, not a directory").unwrap();
    let store = FileStore::new(root.path().join("tapes"), Durability::Os);
    assert!(
        store
            .append(&name(), vec![Entry::event("x", None)])
            .await
            .is_err()
    );
    assert!(store.summary(&name()).await.is_err());
    assert!(store.list(TapeListFilter::Sessions).await.is_err());
}

#[tokio::test]
async fn a_directory_without_permission_is_a_typed_error() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    faults.fail_at(1, std::io::ErrorKind::PermissionDenied);
    let store = FileStore::with_fs(root.path(), Durability::Os, faults.fs());
    let error = store
        .append(&name(), vec![Entry::event("x", None)])
        .await
        .unwrap_err();
    assert!(
        matches!(error, bub_tape::TapeError::Denied { .. }),
        "{error:?}"
    );
    assert_eq!(error.kind(), TapeErrorKind::Environment);
}

// C.3, W-19: archives with the same timestamp do not overwrite each other, and contain the bytes of the tape.
#[tokio::test]
async fn archives_keep_the_bytes_and_have_their_own_names() {
    let fixture = fixture();
    let odd = python_line(1, "one")
        + "{\"id\": 2, \"kind\": \"event\", \"payload\": {\"x\": NaN}, \"meta\": {}, \"date\": \"d\"}\n";
    fixture.write(&odd);
    let tape = Tape::new(Arc::new(fixture.store.clone()), name());
    let first = tape.reset(true).await.unwrap().archived.unwrap();
    let second = tape.reset(true).await.unwrap().archived.unwrap();
    assert_ne!(first, second);
    assert_eq!(fs::read_to_string(&first).unwrap(), odd);
    let stem = format!("{}.jsonl.", name());
    let file = Path::new(&first).file_name().unwrap().to_str().unwrap();
    let stamp = file
        .strip_prefix(&stem)
        .unwrap()
        .strip_suffix(".bak")
        .unwrap();
    assert_eq!((stamp.len(), &stamp[8..9], &stamp[15..]), (16, "T", "Z"));
    // H-60: the new tape contains the path of the archive.
    let opening = tape.entries(EntryRange::ALL).await.unwrap();
    assert_eq!(
        opening[0].payload["state"],
        json!({"owner": "human", "archived": second})
    );
    assert_eq!(
        fixture.store.list(TapeListFilter::Sessions).await.unwrap(),
        [name()]
    );
}

// A blob whose content does not match its hash is never returned.
#[tokio::test]
async fn a_damaged_blob_is_refused() {
    let fixture = fixture();
    let id = fixture
        .store
        .blobs()
        .put(b"picture".to_vec())
        .await
        .unwrap();
    let path = fixture
        .root
        .path()
        .join(".bub/blobs")
        .join(&id.as_hex()[..2])
        .join(id.as_hex());
    fs::write(&path, b"pictuRe").unwrap();
    let error = fixture.store.blobs().get(&id).await.unwrap_err();
    assert!(
        matches!(error, bub_tape::TapeError::Damaged { .. }),
        "{error}"
    );
    fs::write(&path, b"pic").unwrap();
    fixture
        .store
        .blobs()
        .put(b"picture".to_vec())
        .await
        .unwrap();
    assert_eq!(fixture.store.blobs().get(&id).await.unwrap(), b"picture");
}

// A byte order mark, which an editor may write before the first line, is ignored.
#[test]
fn a_byte_order_mark_is_no_damage() {
    let line = r#"{"id": 1, "kind": "message", "payload": {"role": "user", "content": "hi"}, "meta": {}, "date": "2026-01-01T00:00:00Z"}"#;
    let entry = bub_tape::codec::decode(format!("\u{feff}{line}").as_bytes()).unwrap();
    assert_eq!(entry.payload["content"], "hi");
}
