//! Tests for implementations of the traits of this crate. The feature `testing` enables this module.
//!
//! Call [`check_store`] in a test of your store. It panics if the store violates a guarantee.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code for other crates"
)]

use std::{collections::BTreeSet, panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt as _, TryStreamExt as _, future::join_all};
use serde_json::json;

use crate::{
    AnchorQuery, Entry, EntryId, EntryKind, EntryRange, LeaseWait, Position, ResetRequest,
    TapeErrorKind, TapeListFilter, TapeName, TapeStore,
};

/// Runs one check. If it panics, panics with the guarantee that the store violates, which is the name of the check.
macro_rules! check {
    ($name:ident($store:expr)) => {
        let checked = AssertUnwindSafe($name($store)).catch_unwind().await;
        let guarantee = stringify!($name).replace('_', " ");
        assert!(
            checked.is_ok(),
            "the store violates a guarantee: {guarantee}; see above"
        );
    };
}
/// Checks the guarantees of [`TapeStore`]. `make` must create an empty store each time.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// bub_tape::testing::check_store(bub_tape::MemoryStore::new).await;
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics if the store violates a guarantee.
pub async fn check_store<S: TapeStore + 'static>(make: impl Fn() -> S) {
    check!(ids_are_assigned_from_one(&make()));
    check!(an_empty_batch_does_nothing(&make()));
    check!(unwritten_tapes_are_empty_and_stay_unlisted(&make()));
    check!(every_entry_comes_back_as_it_was(&make()));
    check!(ranges_are_read_from_both_ends(&make()));
    check!(concurrent_batches_stay_complete(Arc::new(make())));
    check!(anchors_are_found(&make()));
    check!(summaries_follow_the_tape(&make()));
    check!(entries_are_fetched_by_id(&make()));
    check!(resets_replace_everything(&make()));
    check!(archives_have_unique_names(&make()));
    check!(lists_distinguish_tapes(&make()));
    check!(discarded_tapes_are_gone(&make()));
    check!(a_lease_has_one_holder(&make()));
    check!(blobs_are_stored_once(&make()));
}

fn tape_name() -> TapeName {
    TapeName::new("0123456789abcdef__0123456789abcdef").unwrap()
}

fn numbered_message(number: i64) -> Entry {
    Entry::message("user", number.to_string()).with_date("2026-01-02T03:04:05.000006+00:00")
}

async fn read_all(store: &dyn TapeStore, range: EntryRange) -> Vec<Entry> {
    store.read(&tape_name(), range).try_collect().await.unwrap()
}

async fn read_ids(store: &dyn TapeStore, range: EntryRange) -> Vec<i64> {
    read_all(store, range)
        .await
        .iter()
        .map(|entry| entry.id.get())
        .collect()
}

async fn ids_are_assigned_from_one(store: &dyn TapeStore) {
    let mut entry = numbered_message(1);
    entry.id = EntryId::new(77);
    assert_eq!(
        store
            .append(&tape_name(), vec![entry, numbered_message(2)])
            .await
            .unwrap()
            .ids,
        [1, 2].map(EntryId::new)
    );
    assert_eq!(
        store
            .append(&tape_name(), vec![numbered_message(3)])
            .await
            .unwrap()
            .ids,
        [EntryId::new(3)]
    );
    assert_eq!(read_ids(store, EntryRange::ALL).await, [1, 2, 3]);
}

async fn an_empty_batch_does_nothing(store: &dyn TapeStore) {
    assert!(
        store
            .append(&tape_name(), Vec::new())
            .await
            .unwrap()
            .ids
            .is_empty()
    );
    assert!(
        store
            .list(TapeListFilter::Sessions)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn unwritten_tapes_are_empty_and_stay_unlisted(store: &dyn TapeStore) {
    assert!(read_all(store, EntryRange::ALL).await.is_empty());
    assert_eq!(
        store.summary(&tape_name()).await.unwrap(),
        crate::TapeSummary::default()
    );
    assert!(
        store
            .anchors(&tape_name(), AnchorQuery::All)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .fetch(&tape_name(), &[EntryId::new(1)])
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        store
            .list(TapeListFilter::Sessions)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn every_entry_comes_back_as_it_was(store: &dyn TapeStore) {
    let mut unusual = Entry::new(
        EntryKind::from("telepathy"),
        json!({"z": 1, "a": [null, 1.5, "\u{1F419} 你好\n\"\\\u{7}"]})
            .as_object()
            .unwrap()
            .clone(),
    );
    unusual
        .extra
        .insert("added later".to_owned(), json!({"x": true}));
    let batch = vec![
        Entry::system("be kind"),
        Entry::message("user", "hi"),
        Entry::tool_call(vec![
            json!({"id": "c1", "function": {"name": "f", "arguments": "{}"}}),
        ]),
        Entry::tool_result(vec![json!("ok")]),
        Entry::error("provider", "no", Some(json!({"status": 500}))),
        Entry::event("run", Some(json!({"status": "ok"}))).with_meta("run_id", "run-1"),
        Entry::anchor("phase", None),
        unusual,
    ];
    let receipt = store.append(&tape_name(), batch.clone()).await.unwrap();
    let expected: Vec<_> = batch
        .into_iter()
        .zip(receipt.ids)
        .map(|(entry, id)| Entry { id, ..entry })
        .collect();
    assert_eq!(read_all(store, EntryRange::ALL).await, expected);
}

async fn ranges_are_read_from_both_ends(store: &dyn TapeStore) {
    for number in 0..3 {
        let anchor = Entry::anchor(&format!("a{number}"), None);
        store
            .append(
                &tape_name(),
                vec![anchor, numbered_message(1), numbered_message(2)],
            )
            .await
            .unwrap();
    }
    let marks = store.anchors(&tape_name(), AnchorQuery::All).await.unwrap();
    let position = |name: &str| {
        marks
            .iter()
            .find(|mark| mark.name == name)
            .map(|mark| mark.position)
            .unwrap()
    };
    assert_eq!(
        read_ids(store, EntryRange::after(position("a1"))).await,
        [5, 6, 7, 8, 9]
    );
    assert_eq!(
        read_ids(store, EntryRange::starting_at(position("a1"))).await,
        [4, 5, 6, 7, 8, 9]
    );
    assert_eq!(
        read_ids(
            store,
            EntryRange::after(position("a0")).before(position("a2"))
        )
        .await,
        [2, 3, 4, 5, 6]
    );
    assert_eq!(
        read_ids(
            store,
            EntryRange::after(position("a0"))
                .before(position("a2"))
                .newest_first()
        )
        .await,
        [6, 5, 4, 3, 2]
    );
    assert_eq!(
        read_ids(store, EntryRange::ALL.newest_first()).await,
        [9, 8, 7, 6, 5, 4, 3, 2, 1]
    );
    assert!(
        read_ids(
            store,
            EntryRange::after(position("a1")).before(position("a1"))
        )
        .await
        .is_empty()
    );
    let inclusive = EntryRange {
        end: std::ops::Bound::Included(position("a1")),
        ..EntryRange::starting_at(position("a0"))
    };
    assert_eq!(read_ids(store, inclusive).await, [1, 2, 3, 4]);
}

async fn concurrent_batches_stay_complete(store: Arc<dyn TapeStore>) {
    let append = |writer: usize| {
        let store = Arc::clone(&store);
        async move {
            for _ in 0..20 {
                let batch = vec![numbered_message(i64::try_from(writer).unwrap()); 3];
                let ids = store.append(&tape_name(), batch).await.unwrap().ids;
                assert!(
                    ids.windows(2).all(|pair| pair[0].next() == pair[1]),
                    "a batch was torn apart: {ids:?}"
                );
            }
        }
    };
    join_all((0..8).map(append)).await;
    let entries = read_all(&*store, EntryRange::ALL).await;
    let numbers: BTreeSet<_> = entries.iter().map(|entry| entry.id.get()).collect();
    assert_eq!(
        (entries.len(), numbers.len(), numbers.last()),
        (480, 480, Some(&480))
    );
    assert!(
        entries
            .chunks(3)
            .all(|batch| batch.iter().all(|entry| entry.payload == batch[0].payload))
    );
}

async fn anchors_are_found(store: &dyn TapeStore) {
    let batch = ["a", "b", "a", "c"]
        .map(|name| Entry::anchor(name, Some(json!({"n": name}))))
        .to_vec();
    store.append(&tape_name(), batch).await.unwrap();
    let find_ids = async |search| {
        let marks = store.anchors(&tape_name(), search).await.unwrap();
        marks.iter().map(|mark| mark.id.get()).collect::<Vec<_>>()
    };
    assert_eq!(find_ids(AnchorQuery::All).await, [1, 2, 3, 4]);
    assert_eq!(find_ids(AnchorQuery::Latest(1)).await, [4]);
    assert_eq!(find_ids(AnchorQuery::Latest(3)).await, [2, 3, 4]);
    assert_eq!(
        find_ids(AnchorQuery::LatestNamed("a".to_owned())).await,
        [3]
    );
    assert!(
        find_ids(AnchorQuery::LatestNamed("z".to_owned()))
            .await
            .is_empty()
    );
    let marks = store.anchors(&tape_name(), AnchorQuery::All).await.unwrap();
    let after =
        |name: &str, position: Position| AnchorQuery::FirstNamedAfter(name.to_owned(), position);
    assert_eq!(find_ids(after("a", marks[0].position)).await, [3]);
    assert!(find_ids(after("b", marks[1].position)).await.is_empty());
}

async fn summaries_follow_the_tape(store: &dyn TapeStore) {
    let usage = json!({"status": "ok", "usage": {"total_tokens": 15, "prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}});
    let mut start = Entry::anchor("session/start", Some(json!({"owner": "human"})));
    start.meta = crate::SessionInfo {
        channel: Some("cli".to_owned()),
        ..crate::SessionInfo::new("cli:local")
    }
    .to_map();
    store
        .append(&tape_name(), vec![start, numbered_message(1)])
        .await
        .unwrap();
    store
        .append(
            &tape_name(),
            vec![
                Entry::event("run", Some(usage)),
                Entry::event("run", Some(json!({}))),
            ],
        )
        .await
        .unwrap();
    store
        .append(
            &tape_name(),
            vec![Entry::event("model_switch", Some(json!({"model": "a:b"})))],
        )
        .await
        .unwrap();
    let summary = store.summary(&tape_name()).await.unwrap();
    assert_eq!(
        (
            summary.entries,
            summary.anchors,
            summary.entries_since_last_anchor
        ),
        (5, 1, 4)
    );
    assert_eq!(summary.usage.map(|usage| usage.total_tokens), Some(15));
    assert_eq!(
        summary.usage.and_then(|usage| usage.cache_hit_rate()),
        Some(0.4)
    );
    assert_eq!(summary.model.as_deref(), Some("a:b"));
    assert_eq!(summary.title.as_deref(), Some("1"));
    assert_eq!(
        summary.session.map(|session| session.session_id).as_deref(),
        Some("cli:local")
    );
}

async fn entries_are_fetched_by_id(store: &dyn TapeStore) {
    for number in 0..10 {
        store
            .append(
                &tape_name(),
                vec![numbered_message(number), Entry::anchor("x", None)],
            )
            .await
            .unwrap();
    }
    let requested = [19, 3, 99, 4].map(EntryId::new);
    let find_ids = store.fetch(&tape_name(), &requested).await.unwrap();
    assert_eq!(
        find_ids
            .iter()
            .map(|entry| entry.id.get())
            .collect::<Vec<_>>(),
        [3, 4, 19]
    );
    store
        .append(&tape_name(), vec![numbered_message(0); 3_000])
        .await
        .unwrap();
    store
        .append(&tape_name(), vec![Entry::anchor("y", None)])
        .await
        .unwrap();
    let find_ids = store
        .fetch(&tape_name(), &[5, 2_000].map(EntryId::new))
        .await
        .unwrap();
    assert_eq!(
        find_ids
            .iter()
            .map(|entry| entry.id.get())
            .collect::<Vec<_>>(),
        [5, 2_000]
    );
}

async fn resets_replace_everything(store: &dyn TapeStore) {
    store
        .append(
            &tape_name(),
            vec![
                numbered_message(1),
                Entry::anchor("old", None),
                numbered_message(2),
            ],
        )
        .await
        .unwrap();
    let initial_entries = Box::new(|archived: Option<&str>| {
        vec![
            Entry::anchor("new", Some(json!({"archived": archived}))),
            numbered_message(3),
        ]
    });
    let reset = ResetRequest {
        archive: Some("20260102T030405Z".to_owned()),
        initial_entries,
    };
    let outcome = store.reset(&tape_name(), reset).await.unwrap();
    assert_eq!(outcome.ids, [1, 2].map(EntryId::new));
    let entries = read_all(store, EntryRange::ALL).await;
    assert_eq!(entries.len(), 2);
    assert_eq!(
        entries[0].payload["state"]["archived"].as_str(),
        outcome.archived.as_deref()
    );
    assert!(outcome.archived.is_some());
    assert_eq!(store.summary(&tape_name()).await.unwrap().entries, 2);
    assert_eq!(
        store
            .append(&tape_name(), vec![numbered_message(4)])
            .await
            .unwrap()
            .ids,
        [EntryId::new(3)]
    );
    store
        .reset(&tape_name(), ResetRequest::empty(None))
        .await
        .unwrap();
    assert!(read_all(store, EntryRange::ALL).await.is_empty());
    assert_eq!(
        store
            .append(&tape_name(), vec![numbered_message(5)])
            .await
            .unwrap()
            .ids,
        [EntryId::new(1)]
    );
}

async fn archives_have_unique_names(store: &dyn TapeStore) {
    store
        .append(&tape_name(), vec![numbered_message(1)])
        .await
        .unwrap();
    let mut names = BTreeSet::new();
    for _ in 0..3 {
        names.insert(
            store
                .archive(&tape_name(), "20260102T030405Z")
                .await
                .unwrap(),
        );
    }
    let reset = ResetRequest::empty(Some("20260102T030405Z".to_owned()));
    names.insert(
        store
            .reset(&tape_name(), reset)
            .await
            .unwrap()
            .archived
            .unwrap(),
    );
    assert_eq!(names.len(), 4);
}

async fn lists_distinguish_tapes(store: &dyn TapeStore) {
    let (main, other) = (tape_name(), TapeName::new("a__b").unwrap());
    let (sidecar, fork) = (
        main.sidecar("spill").unwrap(),
        main.fork_journal("f1").unwrap(),
    );
    let sidecar_fork = sidecar.fork_journal("f1").unwrap();
    for tape in [&main, &other, &sidecar, &fork, &sidecar_fork] {
        store.append(tape, vec![numbered_message(1)]).await.unwrap();
    }
    assert_eq!(
        store.list(TapeListFilter::Sessions).await.unwrap(),
        [main.clone(), other.clone()]
    );
    assert_eq!(
        store
            .list(TapeListFilter::Sidecars(main.clone()))
            .await
            .unwrap(),
        std::slice::from_ref(&sidecar)
    );
    assert_eq!(
        store.list(TapeListFilter::AllSidecars).await.unwrap(),
        std::slice::from_ref(&sidecar)
    );
    assert_eq!(
        store.list(TapeListFilter::Forks(main)).await.unwrap(),
        [fork.clone(), sidecar_fork.clone()]
    );
    assert_eq!(
        store.list(TapeListFilter::AllForks).await.unwrap(),
        [fork, sidecar_fork]
    );
    assert!(
        store
            .list(TapeListFilter::Forks(other))
            .await
            .unwrap()
            .is_empty()
    );
}

async fn discarded_tapes_are_gone(store: &dyn TapeStore) {
    let journal = tape_name().fork_journal("f1").unwrap();
    store
        .append(&journal, vec![numbered_message(1)])
        .await
        .unwrap();
    store.discard(&journal).await.unwrap();
    store.discard(&journal).await.unwrap();
    assert!(
        store
            .list(TapeListFilter::AllForks)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(store.summary(&journal).await.unwrap().entries, 0);
}

async fn a_lease_has_one_holder(store: &dyn TapeStore) {
    let first = store.lease(&tape_name(), LeaseWait::No).await.unwrap();
    let error = store.lease(&tape_name(), LeaseWait::No).await.unwrap_err();
    assert_eq!(error.kind(), TapeErrorKind::Busy);
    assert!(store.lease_holder(&tape_name()).await.unwrap().is_some());
    let other = TapeName::new("a__b").unwrap();
    assert_eq!(store.lease_holder(&other).await.unwrap(), None);
    let second = store.lease(&other, LeaseWait::No).await.unwrap();
    drop(first);
    assert_eq!(store.lease_holder(&tape_name()).await.unwrap(), None);
    drop(store.lease(&tape_name(), LeaseWait::Forever).await.unwrap());
    drop(second);
}

async fn blobs_are_stored_once(store: &dyn TapeStore) {
    let blobs = store.blobs();
    let id = blobs.put(b"picture".to_vec()).await.unwrap();
    assert_eq!(blobs.put(b"picture".to_vec()).await.unwrap(), id);
    assert_eq!(blobs.list().await.unwrap(), std::slice::from_ref(&id));
    assert_eq!(blobs.get(&id).await.unwrap(), b"picture");
    blobs.remove(&id).await.unwrap();
    assert_eq!(
        blobs.get(&id).await.unwrap_err().kind(),
        TapeErrorKind::NotFound
    );
}
