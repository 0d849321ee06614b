//! Queries give the same results in all stores.

use std::sync::Arc;

use crate::view_support::{CountingStore, ids, name, store_fixtures};
use bub_tape::{
    Entry, EntryKind, MergeBack, Query, Tape, TapeError, TapeErrorKind, TapeStore as _,
};
use futures_util::StreamExt as _;
use serde_json::json;

fn dated(entry: Entry, date: &str) -> Entry {
    entry.with_date(date)
}

/// Returns entries with the ids 1 to 10: two anchors with the same name and one with another name.
fn story() -> Vec<Entry> {
    vec![
        dated(
            Entry::anchor("session/start", Some(json!({"owner": "human"}))),
            "2026-01-01T00:00:00+00:00",
        ),
        dated(
            Entry::message("user", "Hello World"),
            "2026-01-01T10:00:00.000001+00:00",
        ),
        dated(
            Entry::anchor("phase", None),
            "2026-01-01T23:59:59.999999+00:00",
        ),
        dated(
            Entry::message("assistant", "你好，世界"),
            "2026-01-02T00:00:00Z",
        ),
        dated(
            Entry::event("loop.step", Some(json!({"step": 1}))),
            "2026-01-02T12:00:00",
        ),
        dated(Entry::anchor("middle", None), "2026-01-02T12:00:01+02:00"),
        dated(
            Entry::message("user", "she said \"hi\" and\nleft"),
            "2026-01-03T00:00:00+00:00",
        ),
        dated(Entry::anchor("phase", None), "2026-01-03T01:00:00+00:00"),
        dated(
            Entry::tool_result(vec!["/etc/hosts was É-mpty".into()]),
            "not a date",
        ),
        dated(
            Entry::message("assistant", "bye"),
            "2026-01-04T00:00:00+00:00",
        ),
    ]
}

async fn check(query: Query, expected: Result<Vec<i64>, &str>) {
    for fixture in store_fixtures() {
        fixture.tape.store().append(&name(), story()).await.unwrap();
        let forked = fixture.tape.fork(MergeBack::No).await.unwrap();
        for (label, tape) in [
            (fixture.label, &fixture.tape),
            ("fork of it", forked.tape()),
        ] {
            let selected = tape.query_all(query.clone()).await;
            let selected = selected.as_deref().map(ids).map_err(ToString::to_string);
            assert_eq!(
                selected,
                expected.clone().map_err(str::to_owned),
                "{query:?} in {} {label}",
                fixture.label
            );
        }
        forked.finish().await.unwrap();
    }
}

/// H-52: a window starts at the latest anchor with the name and ends at the next end anchor. Both anchors are excluded.
#[tokio::test]
async fn windows_lie_between_anchors() {
    let cases = [
        (Query::new(), Ok(vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10])),
        (Query::new().after_last_anchor(), Ok(vec![9, 10])),
        (Query::new().after_anchor("phase"), Ok(vec![9, 10])),
        (Query::new().after_anchor("middle"), Ok(vec![7, 8, 9, 10])),
        (
            Query::new().after_anchor("middle").after_anchor(""),
            Ok((1..=10).collect()),
        ),
        (
            Query::new().between_anchors("session/start", "phase"),
            Ok(vec![2]),
        ),
        (Query::new().between_anchors("middle", "phase"), Ok(vec![7])),
        (
            Query::new().after_anchor("nowhere"),
            Err("Anchor 'nowhere' was not found."),
        ),
        (
            Query::new().between_anchors("nowhere", "phase"),
            Err("Anchor 'nowhere' was not found."),
        ),
        // The end anchor must be after the latest start anchor.
        (
            Query::new().between_anchors("phase", "middle"),
            Err("Anchor 'middle' was not found."),
        ),
    ];
    for (query, expected) in cases {
        check(query, expected).await;
    }
}

/// H-52: a window on a tape without anchors is an error. A tape that was never written is empty.
#[tokio::test]
async fn a_window_needs_an_anchor() {
    for fixture in store_fixtures() {
        assert_eq!(fixture.tape.query_all(Query::new()).await.unwrap(), vec![]);
        let error = fixture
            .tape
            .query_all(Query::new().after_last_anchor())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "No anchors found in tape.");
        assert_eq!(error.kind(), TapeErrorKind::NotFound);
    }
}

/// H-52, W-20: a date without time covers the day, a time without offset is UTC, and both ends are inclusive and
/// optional.
#[tokio::test]
async fn dates_are_inclusive_and_may_be_open() {
    let cases = [
        (
            Query::new().since("2026-01-01").until("2026-01-01"),
            Ok(vec![1, 2, 3]),
        ),
        (
            Query::new().since("2026-01-02").until("2026-01-02"),
            Ok(vec![4, 5, 6]),
        ),
        (Query::new().since("2026-01-03T01:00:00"), Ok(vec![8, 10])),
        (
            Query::new().since("2026-01-03T01:00:00.000001Z"),
            Ok(vec![10]),
        ),
        (
            Query::new().until("2026-01-01T10:00:00.000001"),
            Ok(vec![1, 2]),
        ),
        (
            Query::new().until("2026-01-01T12:00:00.000001+02:00"),
            Ok(vec![1, 2]),
        ),
        (
            Query::new()
                .since("2026-01-02 12:00")
                .until("2026-01-02T12:00:00Z"),
            Ok(vec![5]),
        ),
        (Query::new().since("2027-01-01"), Ok(vec![])),
        (
            Query::new().since("yesterday"),
            Err("Invalid ISO date or datetime: 'yesterday'."),
        ),
        (
            Query::new().until("2026-02-30"),
            Err("Invalid ISO date or datetime: '2026-02-30'."),
        ),
        (
            Query::new().since(""),
            Err("Invalid ISO date or datetime: ''."),
        ),
        (
            Query::new().until("2026-01-01T25:00"),
            Err("Invalid ISO date or datetime: '2026-01-01T25:00'."),
        ),
        (
            Query::new().since("2026-01-02").until("2026-01-01"),
            Err("invalid date range: the start date is after the end date; swap them"),
        ),
    ];
    for (query, expected) in cases {
        check(query, expected).await;
    }
}

/// H-52: the window applies first, then dates, text and kinds, then the limit. W-20: text in any script, with quotes,
/// in any case.
#[tokio::test]
async fn text_kinds_and_limit_narrow_the_window() {
    let all = Query::new;
    let cases = [
        (all().text("hello world"), vec![2]),
        (all().text("你好"), vec![4]),
        (all().text("said \"hi\" and\nleft"), vec![7]),
        (all().text("/etc/hosts was é"), vec![9]),
        (all().text("loop.STEP"), vec![5]),
        (all().text("anchor"), vec![1, 3, 6, 8]),
        (all().text("owner"), vec![1]),
        (all().text("2026-01-02t12"), vec![5, 6]),
        (all().text("nothing like it"), vec![]),
        (all().kinds([EntryKind::Message]), vec![2, 4, 7, 10]),
        (
            all().kinds([EntryKind::Message, EntryKind::Event]).limit(2),
            vec![2, 4],
        ),
        (
            all().kinds([EntryKind::Message]).newest_first().limit(2),
            vec![10, 7],
        ),
        (all().newest_first(), (1..=10).rev().collect()),
        (all().limit(0), vec![]),
        (
            all()
                .after_anchor("middle")
                .kinds([EntryKind::Message])
                .text("e")
                .newest_first(),
            vec![10, 7],
        ),
        (all().kinds([EntryKind::Other("letter".to_owned())]), vec![]),
        (
            all()
                .between_anchors("session/start", "phase")
                .until("2026-01-01")
                .text("hello")
                .limit(5),
            vec![2],
        ),
    ];
    for (query, expected) in cases {
        check(query, Ok(expected)).await;
    }
}

/// W-20: entries of a fork are filtered like others.
#[tokio::test]
async fn a_query_sees_what_the_fork_wrote_and_filters_it() {
    for fixture in store_fixtures() {
        fixture.tape.store().append(&name(), story()).await.unwrap();
        let fork = fixture.tape.fork(MergeBack::Yes).await.unwrap();
        fork.tape()
            .append(Entry::message("user", "hello from the fork"))
            .await
            .unwrap();
        fork.tape()
            .append(Entry::message("user", "something else"))
            .await
            .unwrap();
        let query = Query::new().text("hello");
        assert_eq!(
            ids(&fork.tape().query_all(query.clone()).await.unwrap()),
            [2, 11],
            "{}",
            fixture.label
        );
        assert_eq!(
            ids(&fork
                .tape()
                .query_all(query.clone().after_last_anchor())
                .await
                .unwrap()),
            [11]
        );
        assert_eq!(
            ids(&fork
                .tape()
                .query_all(query.newest_first().limit(1))
                .await
                .unwrap()),
            [11]
        );
    }
}

/// W-15: a store that cannot be read is an error, not an empty tape.
#[tokio::test]
async fn errors_of_the_store_are_passed_on() {
    let queries = [
        Query::new(),
        Query::new().after_last_anchor(),
        Query::new().text("x"),
        Query::new().after_anchor("a"),
    ];
    for query in queries {
        let spy = Arc::new(CountingStore::new());
        spy.append(&name(), story()).await.unwrap();
        let tape = Tape::new(Arc::clone(&spy) as Arc<_>, name());
        let fork = tape.fork(MergeBack::No).await.unwrap();
        spy.fail_with(TapeError::Denied {
            path: "tapes".to_owned(),
        });
        for tape in [&tape, fork.tape()] {
            let error = tape.query_all(query.clone()).await.unwrap_err();
            assert_eq!(error.kind(), TapeErrorKind::Environment, "{query:?}");
        }
    }
}

/// A query reads nothing before the anchor and stops reading at the limit.
#[tokio::test]
async fn only_the_window_is_read() {
    let spy = Arc::new(CountingStore::new());
    let mut entries = vec![Entry::message("user", "x"); 5_000];
    entries.push(Entry::anchor("here", None));
    entries.extend(vec![Entry::message("user", "y"); 20]);
    spy.append(&name(), entries).await.unwrap();
    let tape = Tape::new(Arc::clone(&spy) as Arc<_>, name());
    for (query, most) in [
        (Query::new().after_last_anchor(), 20),
        (Query::new().after_anchor("here"), 20),
        (Query::new().newest_first().limit(3), 3),
        (Query::new().limit(7), 7),
    ] {
        let before = spy.count();
        tape.query_all(query.clone()).await.unwrap();
        assert!(
            spy.count() - before <= most,
            "{query:?} read {}",
            spy.count() - before
        );
    }
    let before = spy.count();
    let mut stream = tape.query(Query::new());
    stream.next().await.unwrap().unwrap();
    assert_eq!(
        spy.count() - before,
        1,
        "entries are read as they are asked for"
    );
}

/// Files with `\u` escapes, without spaces or edited by hand give the same results.
#[tokio::test]
async fn the_spelling_of_json_does_not_matter() {
    let lines = [
        r#"{"id": 1, "kind": "message", "payload": {"role": "user", "content": "\u4f60\u597d \u0057orld"}, "meta": {}, "date": "2026-01-01T00:00:00+00:00"}"#,
        r#"{"date":"2026-01-02T00:00:00+00:00","payload":{"content":"你好 World","role":"user"},"kind":"message","id":2}"#,
        r#"{"kind": "mess\u0061ge", "id": 3, "payload": {"content": "a\/b\u001b[0mWORLD"}, "timestamp": 1767225600.0}"#,
        r#"{"id": 4, "kind": "event", "payload": {"name": "NaN", "data": {"x": NaN, "y": "WORLD\ud800"}}, "meta": null, "date": "2026-01-04"}"#,
        "not json at all: World 你好",
    ];
    let root = tempfile::tempdir().unwrap();
    let store = bub_tape::FileStore::new(root.path(), bub_tape::Durability::Os);
    std::fs::write(store.path(&name()), lines.join("\n")).unwrap();
    let tape = Tape::new(Arc::new(store), name());
    for (query, expected) in [
        (Query::new().text("world"), vec![1, 2, 3, 4]),
        (Query::new().text("你好"), vec![1, 2]),
        (Query::new().text("A/B"), vec![3]),
        (Query::new().text("2026-01-01"), vec![1, 3]),
        (Query::new().kinds([EntryKind::Message]), vec![1, 2, 3]),
        (
            Query::new().kinds([EntryKind::Message]).since("2026-01-02"),
            vec![2],
        ),
        (Query::new().until("2026-01-01"), vec![1, 3]),
        (Query::new().text("message").newest_first(), vec![3, 2, 1]),
    ] {
        assert_eq!(
            ids(&tape.query_all(query.clone()).await.unwrap()),
            expected,
            "{query:?}"
        );
    }
}
