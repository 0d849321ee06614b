//! Tape files with arbitrary bytes: no operation panics, all ways of reading agree, and appending still works.

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryKind, EntryRange, FileStore, TapeName, TapeStore, codec,
};
use futures_util::TryStreamExt as _;
use proptest::prelude::*;

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

/// Generates a part of a tape: valid lines, lines of other writers, garbage, and torn lines.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let line = (0..30_i64, "[a-z你\"\\\\]{0,20}").prop_map(|(id, text)| {
        let mut entry = if id % 5 == 0 {
            Entry::anchor(&text, None)
        } else {
            Entry::message("user", text)
        };
        entry.id = bub_tape::EntryId::new(id);
        codec::encode(&entry).into_bytes()
    });
    let foreign = prop_oneof![
        Just(b"{\"id\": 7, \"kind\": \"event\", \"payload\": {\"name\": \"x\", \"data\": NaN}, \"meta\": 3, \"timestamp\": 1.5}\n".to_vec()),
        Just(b"{\"kind\":\"anchor\",\"id\":9,\"payload\":{\"name\":\"\\ud800\"},\"meta\":{},\"date\":\"2026\"}\n".to_vec()),
        Just(b"{\"id\": 3, \"id\": 4, \"kind\": \"message\", \"payload\": {}, \"date\": \"d\"}\n".to_vec()),
        Just(b"{\"id\": 5, \"kind\": \"event\", \"payload\": {\"name\": \"run\"}, \"meta\": {\"a\": \"\xe4\"}, \"date\": \"d\"}\n".to_vec()),
        Just(b"\n".to_vec()),
    ];
    let rubbish = prop::collection::vec(any::<u8>(), 0..40);
    let torn = (line.clone(), any::<prop::sample::Index>())
        .prop_map(|(line, at)| line[..at.index(line.len())].to_vec());
    prop_oneof![6 => line, 2 => foreign, 1 => rubbish, 1 => torn]
}

async fn entries(store: &FileStore, range: EntryRange) -> Vec<Entry> {
    store.read(&name(), range).try_collect().await.unwrap()
}

async fn check(bytes: &[u8]) {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    std::fs::write(store.path(&name()), bytes).unwrap();
    let before = entries(&store, EntryRange::ALL).await;
    let expected: Vec<_> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter_map(codec::decode)
        .collect();
    assert_eq!(before, expected, "the stream differs from the lines");
    let mut newest = entries(&store, EntryRange::ALL.newest_first()).await;
    newest.reverse();
    assert_eq!(before, newest, "backwards differs");
    let summary = store.summary(&name()).await.unwrap();
    assert_eq!(
        summary.entries,
        before.len() as u64,
        "the index counts differently"
    );
    let anchors = before
        .iter()
        .filter(|entry| entry.kind == EntryKind::Anchor)
        .map(|entry| entry.name().unwrap_or_default());
    let marks = store.anchors(&name(), AnchorQuery::All).await.unwrap();
    assert!(
        marks.iter().map(|mark| mark.name.as_str()).eq(anchors),
        "the index has other anchors"
    );
    assert_eq!(
        std::fs::read(store.path(&name())).unwrap(),
        bytes,
        "a reader changed the tape"
    );

    let ids = store
        .append(&name(), vec![Entry::message("user", "next")])
        .await
        .unwrap()
        .ids;
    assert!(
        before.iter().all(|entry| entry.id < ids[0]),
        "an id was given twice"
    );
    let after = entries(&store, EntryRange::ALL).await;
    assert_eq!(after[..before.len()], before, "an append changed history");
    let report = after[before.len()..].iter().rev().skip(1);
    assert!(
        report
            .into_iter()
            .all(|entry| entry.name() == Some("tape.repaired"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    // C.2, W-3, L2: the same check as the fuzz target of the file store.
    #[test]
    fn any_file_is_a_tape(pieces in prop::collection::vec(piece(), 0..12)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(check(&pieces.concat()));
    }
}
