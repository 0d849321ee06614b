//! Finding and repairing damage, and finding unused files.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use bub_tape::{
    Damage, Durability, Entry, EntryId, EntryRange, FileStore, LeaseWait, Tape, TapeErrorKind,
    TapeName, TapeStore, UnusedFileKind, codec,
};
use futures_util::TryStreamExt as _;
use serde_json::json;
use tempfile::TempDir;

const DAY: Duration = Duration::from_hours(24);

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn fixture() -> (TempDir, FileStore) {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    (root, store)
}

fn line(id: i64, entry: Entry) -> String {
    codec::encode(&Entry {
        id: EntryId::new(id),
        ..entry.with_date("2026-01-02T03:04:05+00:00")
    })
}

fn message(id: i64) -> String {
    line(id, Entry::message("user", format!("message {id}")))
}

async fn damage_of(content: impl AsRef<[u8]>) -> Vec<Damage> {
    let (_root, store) = fixture();
    fs::write(store.path(&name()), content).unwrap();
    let before = fs::read(store.path(&name())).unwrap();
    let report = store.verify(&name()).await.unwrap().damage;
    assert_eq!(
        fs::read(store.path(&name())).unwrap(),
        before,
        "checking changed the tape"
    );
    report
}

async fn ids(store: &FileStore) -> Vec<i64> {
    let entries: Vec<Entry> = store
        .read(&name(), EntryRange::ALL)
        .try_collect()
        .await
        .unwrap();
    entries.iter().map(|entry| entry.id.get()).collect()
}

#[tokio::test]
async fn a_whole_tape_has_no_damage() {
    let call = Entry::tool_call(vec![json!({"id": "c", "function": {"name": "f"}})]);
    let whole = [
        message(1),
        "\n".to_owned(),
        line(2, call.with_meta("run_id", "r")),
        line(3, Entry::event("tool.done", None)),
        line(
            4,
            Entry::tool_result(vec![json!("ok")]).with_meta("run_id", "r"),
        ),
        line(9, Entry::anchor("far", None)).trim_end().to_owned(),
    ];
    assert_eq!(damage_of(whole.concat()).await, []);
    assert_eq!(damage_of("").await, []);
}

#[tokio::test]
async fn a_tape_that_is_not_there_is_whole_and_stays_away() {
    let (root, store) = fixture();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    assert_eq!(
        store.repair(&name()).await.unwrap(),
        bub_tape::RepairReport::default()
    );
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn every_damage_is_found_and_placed() {
    let torn = message(1) + "{\"id\": 2, \"kind\": \"mess";
    let offset = message(1).len() as u64;
    assert_eq!(
        damage_of(&torn).await,
        [Damage::TornTail {
            offset,
            bytes: torn.len() as u64 - offset
        }]
    );
    let split = [message(1).as_bytes(), &[0xe4, 0xbd]].concat();
    assert_eq!(
        damage_of(split).await,
        [Damage::TornTail { offset, bytes: 2 }]
    );
    let garbage = [message(1), "what?\n".to_owned(), message(2)].concat();
    assert_eq!(
        damage_of(garbage).await,
        [Damage::BadLine { line: 2, offset }]
    );
    let (one, two) = (EntryId::new(1), EntryId::new(2));
    assert_eq!(
        damage_of([message(1), message(1), message(2), message(1)].concat()).await,
        [
            Damage::IdOrder {
                line: 2,
                id: one,
                previous: one
            },
            Damage::IdOrder {
                line: 4,
                id: one,
                previous: two
            }
        ]
    );
    // Interrupted calls are not damage.
    let calls = [
        line(1, Entry::tool_call(vec![])),
        line(2, Entry::tool_call(vec![])),
        message(3),
    ]
    .concat();
    assert_eq!(damage_of(calls).await, []);
    assert_eq!(
        damage_of(line(2, Entry::tool_result(vec![]))).await,
        [Damage::Unpaired { id: two }]
    );
    let blob = format!("sha256:{}", "0".repeat(64));
    let media = Entry::message("user", json!([])).with_meta("media", json!([{"blob": blob}]));
    assert_eq!(
        damage_of(line(1, media)).await,
        [Damage::BadBlob {
            id: one,
            blob,
            missing: true
        }]
    );
}

#[tokio::test]
async fn a_repair_keeps_what_it_removes_and_says_so() {
    let (root, store) = fixture();
    let bad = "what?\n";
    fs::write(
        store.path(&name()),
        [
            message(1),
            bad.to_owned(),
            message(2),
            "{\"id\": 3, ".to_owned(),
        ]
        .concat(),
    )
    .unwrap();
    let repaired = store.repair(&name()).await.unwrap();
    assert_eq!(repaired.done.len(), 2, "{repaired:?}");
    let kept: Vec<_> = repaired
        .kept
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert_eq!(kept, ["{\"id\": 3, ", bad]);
    assert!(
        repaired
            .kept
            .iter()
            .all(|path| path.starts_with(root.path()))
    );
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    let text = fs::read_to_string(store.path(&name())).unwrap();
    assert!(text.starts_with(&(message(1) + &message(2))), "{text}");
    assert_eq!(text.matches("tape.repaired").count(), 2);
    assert_eq!(ids(&store).await, [1, 2, 3, 4]);
    // Another process can continue with the repaired tape.
    let other = FileStore::new(root.path(), Durability::Os);
    other
        .append(&name(), vec![Entry::message("user", "next")])
        .await
        .unwrap();
    assert_eq!(store.summary(&name()).await.unwrap().entries, 5);
}

#[tokio::test]
async fn what_only_rewriting_history_could_change_is_accepted_once() {
    let (_root, store) = fixture();
    let tape = [message(1), message(1), line(2, Entry::tool_result(vec![]))].concat();
    fs::write(store.path(&name()), &tape).unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage.len(), 2);
    store.repair(&name()).await.unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    assert!(
        fs::read_to_string(store.path(&name()))
            .unwrap()
            .starts_with(&tape),
        "history was rewritten"
    );
    store
        .append(&name(), vec![Entry::tool_result(vec![])])
        .await
        .unwrap();
    assert_eq!(
        store.verify(&name()).await.unwrap().damage,
        [Damage::Unpaired {
            id: EntryId::new(4)
        }]
    );
    store
        .append(&name(), vec![Entry::tool_call(vec![])])
        .await
        .unwrap();
    assert_eq!(
        store.verify(&name()).await.unwrap().interrupted,
        [EntryId::new(5)]
    );
}

#[tokio::test]
async fn a_running_turn_is_neither_damaged_nor_repaired() {
    let (_root, store) = fixture();
    let lease = store.lease(&name(), LeaseWait::No).await.unwrap();
    store
        .append(&name(), vec![Entry::tool_call(vec![])])
        .await
        .unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    fs::write(store.path(&name()), message(1) + "what?\n").unwrap();
    assert_eq!(
        store.repair(&name()).await.unwrap_err().kind(),
        TapeErrorKind::Busy
    );
    drop(lease);
    store.repair(&name()).await.unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
}

#[tokio::test]
async fn a_wrong_index_is_found_and_made_again() {
    let (root, store) = fixture();
    let batch = (0..20).map(|_| Entry::anchor("a", None)).collect();
    store.append(&name(), batch).await.unwrap();
    store.reindex(&name()).await.unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    let index = root.path().join(format!(".bub/index/{}.idx", name()));
    let wrong = fs::read_to_string(&index)
        .unwrap()
        .replace("\"entries\":20", "\"entries\":21");
    fs::write(&index, wrong).unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    assert_eq!(
        store.verify(&name()).await.unwrap().damage,
        [Damage::StaleIndex]
    );
    store.repair(&name()).await.unwrap();
    assert_eq!(store.verify(&name()).await.unwrap().damage, []);
    assert_eq!(store.summary(&name()).await.unwrap().entries, 20);
}

#[tokio::test]
async fn old_archives_and_unreferenced_blobs_are_left_over() {
    let (root, store) = fixture();
    let picture = |bytes: &str| json!([{"type": "image_url", "image_url": {"url": bytes}}]);
    let tape = Tape::new(std::sync::Arc::new(store.clone()), name());
    tape.append(Entry::message("user", picture("used")))
        .await
        .unwrap();
    let unused = store.blobs().put(b"unused".to_vec()).await.unwrap();
    let young = store.blobs().put(b"young".to_vec()).await.unwrap();
    for id in store
        .blobs()
        .list()
        .await
        .unwrap()
        .iter()
        .filter(|id| **id != young)
    {
        age(&blob_path(&root, id.as_hex()), 40);
    }
    for stamp in ["20200101T000000Z", "20200101T000000Z-1", "20990101T000000Z"] {
        fs::write(
            root.path().join(format!("{}.jsonl.{stamp}.bak", name())),
            "x",
        )
        .unwrap();
    }
    for other in [
        "notes.bak",
        "a__b.jsonl.today.bak",
        ".jsonl.20200101T000000Z.bak",
    ] {
        fs::write(root.path().join(other), "x").unwrap();
    }
    let left = store.unused_files(30 * DAY).await.unwrap();
    let kinds: Vec<_> = left.iter().map(|file| file.kind).collect();
    assert_eq!(
        kinds,
        [
            UnusedFileKind::Archive,
            UnusedFileKind::Archive,
            UnusedFileKind::Blob
        ],
        "{left:?}"
    );
    assert_eq!(left[2].path, blob_path(&root, unused.as_hex()));
    assert_eq!(
        store.unused_files(Duration::ZERO).await.unwrap().len(),
        3,
        "young blobs may be about to be used"
    );

    // The blob is used again before it is removed.
    store.blobs().put(b"unused".to_vec()).await.unwrap();
    assert!(!store.remove_unused_file(&left[2]).await.unwrap());
    assert!(store.remove_unused_file(&left[0]).await.unwrap());
    assert_eq!(store.blobs().get(&unused).await.unwrap(), b"unused");
    assert_eq!(store.unused_files(30 * DAY).await.unwrap().len(), 1);
}

#[tokio::test]
async fn blobs_of_archives_that_stay_are_kept() {
    let (root, store) = fixture();
    let tape = Tape::new(std::sync::Arc::new(store.clone()), name());
    tape.append(Entry::message(
        "user",
        json!([{"type": "image_url", "image_url": {}}]),
    ))
    .await
    .unwrap();
    tape.reset(true).await.unwrap();
    for id in store.blobs().list().await.unwrap() {
        age(&blob_path(&root, id.as_hex()), 40);
    }
    assert_eq!(store.unused_files(30 * DAY).await.unwrap(), []);
}

fn blob_path(root: &TempDir, hex: &str) -> std::path::PathBuf {
    root.path().join(".bub/blobs").join(&hex[..2]).join(hex)
}

fn age(path: &std::path::Path, days: u32) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - DAY * days).unwrap();
}
