//! What a search finds, the same in every store.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod view_support;

use bub_tape::{
    Entry, EntryKind, MergeBack, Query, SEARCH_MARKER, Search, SearchResults, TapeErrorKind,
};
use serde_json::json;
use view_support::{call, name, places};

fn story() -> Vec<Entry> {
    let user = |text: &str| Entry::message("user", text);
    let arguments = json!({"cmd": "echo \"grüße\"\nls"}).to_string();
    let function = json!({"name": "bash", "arguments": arguments});
    let on = |date: &str, entry: Entry| entry.with_date(format!("{date}T12:00:00+00:00"));
    vec![
        on(
            "2026-01-01",
            Entry::anchor("session/start", Some(json!({"note": "zebrafish"}))),
        ),
        on("2026-01-01", user("The Zebrafish swims")),
        on("2026-01-01", user("天气很好，斑马鱼在游泳")),
        on("2026-01-02", user("she said \"hello\" and\nleft\\home")),
        on(
            "2026-01-02",
            Entry::message(
                "assistant",
                vec![json!({"type": "text", "text": "a zebrafsh, perhaps"})],
            ),
        ),
        on(
            "2026-01-02",
            Entry::tool_result(vec!["/var/log/ZEBRAFISH.log".into(), json!({"n": 4711})]),
        ),
        on(
            "2026-01-03",
            Entry::tool_call(vec![
                json!({"id": "c1", "type": "function", "function": function}),
            ]),
        ),
        on(
            "2026-01-03",
            Entry::event("loop.step", Some(json!({"note": "zebrafish"}))),
        ),
        on("2026-01-03", user("The Zebrafish swims")),
        on(
            "2026-01-03",
            user(&format!(
                "{SEARCH_MARKER}: 1 matches\n{{\"content\": \"zebrafish\"}}"
            )),
        ),
        on(
            "2026-01-04",
            user("docker compose timed out in the deployment"),
        ),
        on("2026-01-04", user("Привет, Сисиф. ΣΊΣΥΦΟΣ")),
    ]
}

fn ids(found: &SearchResults) -> Vec<i64> {
    found.hits.iter().map(|hit| hit.entry.id.get()).collect()
}

async fn check(search: Search, expected: &[i64]) {
    for place in places() {
        place.tape.store().append(&name(), story()).await.unwrap();
        let fork = place.tape.fork(MergeBack::No).await.unwrap();
        for (label, tape) in [("", &place.tape), ("fork of ", fork.tape())] {
            let found = tape.search(&search).await.unwrap();
            assert_eq!(
                ids(&found),
                expected,
                "{search:?} in {label}{}",
                place.label
            );
        }
    }
}

/// W-20, H-53: every script, quotes, any case; exact matches latest first, then near ones; the same payload once.
#[tokio::test]
async fn words_are_found_in_every_script() {
    let cases: [(&str, &[i64]); 21] = [
        ("zebrafish", &[9, 6, 5]),
        ("  ZEBRAFISH ", &[9, 6, 5]),
        ("zebrafsh", &[5, 9, 6]),
        ("the zebrafish", &[9]),
        ("斑马鱼", &[3]),
        ("天气", &[3]),
        ("said \"hello\"", &[4]),
        ("hello\" and\nleft", &[4]),
        ("left\\home", &[4]),
        ("/var/log", &[6]),
        ("4711", &[6]),
        ("привет", &[12]),
        ("превет", &[12]),
        ("σίσυφος", &[12]),
        // Every word, in any order, each with its own error.
        ("deploymnt dockr", &[11]),
        ("deployment in docker", &[11]),
        ("deployment of cats", &[]),
        ("xylophone", &[]),
        // What every message has is not text.
        ("user", &[]),
        // Too short for errors.
        ("zq", &[]),
        ("no", &[]),
    ];
    for (text, expected) in cases {
        check(Search::new(text), expected).await;
    }
}

/// H-53: without near matches only what was asked for is found.
#[tokio::test]
async fn near_matches_can_be_left_out() {
    check(Search::new("zebrafish").exactly(), &[9, 6]).await;
    check(Search::new("zebrafsh").exactly(), &[5]).await;
    check(Search::new("zebrafishes").exactly(), &[]).await;
}

/// H-116: kinds, dates with one open end, and a limit narrow the search.
#[tokio::test]
async fn kinds_dates_and_limit_narrow_the_search() {
    let within = |query: Query| Search::new("zebrafish").within(query);
    check(within(Query::new()), &[9, 8, 6, 1, 5]).await;
    check(within(Query::new().kinds([EntryKind::Event])), &[8]).await;
    check(within(Query::new().since("2026-01-03")), &[9, 8]).await;
    check(within(Query::new().until("2026-01-01")), &[2, 1]).await;
    check(
        within(Query::new().until("2026-01-02").last_anchor()),
        &[6, 2, 5],
    )
    .await;
    check(Search::new("zebrafish").limit(1), &[9]).await;
    check(Search::new("zebrafish").limit(2), &[9, 6]).await;
    check(Search::new("zebrafish").limit(0), &[]).await;
    check(
        Search::new("echo \"GRÜSSE\"").within(Query::new().kinds([EntryKind::ToolCall])),
        &[],
    )
    .await;
    check(
        Search::new("echo \"GRÜßE\"\nls").within(Query::new().kinds([EntryKind::ToolCall])),
        &[7],
    )
    .await;
    for place in places() {
        let search = Search::new("x").within(Query::new().since("soon"));
        let error = place.tape.search(&search).await.unwrap_err();
        assert_eq!(error.kind(), TapeErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "Invalid ISO date or datetime: 'soon'.");
    }
}

/// H-116: the output of an earlier search is counted, not shown.
#[tokio::test]
async fn a_search_does_not_find_itself() {
    for place in places() {
        place.tape.store().append(&name(), story()).await.unwrap();
        let found = place.tape.search(&Search::new("zebrafish")).await.unwrap();
        assert_eq!(
            (found.hits.len(), found.filtered),
            (3, 1),
            "{}",
            place.label
        );
    }
}

/// W-20: the running turn is searched like the rest, also inside a fork.
#[tokio::test]
async fn the_running_turn_is_searched_and_filtered() {
    for place in places() {
        place.tape.store().append(&name(), story()).await.unwrap();
        let fork = place.tape.fork(MergeBack::Yes).await.unwrap();
        fork.tape()
            .append(Entry::message("user", "one more zebrafish"))
            .await
            .unwrap();
        fork.tape()
            .append(Entry::message("user", "nothing of interest"))
            .await
            .unwrap();
        fork.tape()
            .append(Entry::tool_call(vec![call("zebrafish", "bash")]))
            .await
            .unwrap();
        let found = fork
            .tape()
            .search(&Search::new("zebrafish").exactly())
            .await
            .unwrap();
        assert_eq!(ids(&found), [13, 9, 6], "{}", place.label);
    }
}

/// A snippet shows the match in its surroundings, on one line.
#[tokio::test]
async fn snippets_show_the_surroundings() {
    for place in places() {
        let long = format!(
            "{}\n\tthe   ZEBRAFISH\n{}",
            "ä ".repeat(200),
            "ö ".repeat(200)
        );
        place
            .tape
            .append(Entry::message("user", long))
            .await
            .unwrap();
        place
            .tape
            .append(Entry::message("user", "short zebrafsh"))
            .await
            .unwrap();
        let found = place.tape.search(&Search::new("zebrafish")).await.unwrap();
        let [exact, near] = &found.hits[..] else {
            panic!("{found:?}")
        };
        assert!(exact.exact && !near.exact);
        assert!(
            exact.snippet.starts_with("…ä ") && exact.snippet.ends_with(" ö…"),
            "{}",
            exact.snippet
        );
        assert!(
            exact.snippet.contains("ä the ZEBRAFISH ö"),
            "{}",
            exact.snippet
        );
        assert!(exact.snippet.chars().count() <= 202);
        assert_eq!(near.snippet, "short zebrafsh");
    }
}

/// Lines longer than a block, and hits on the borders of blocks, are found.
#[tokio::test]
async fn long_tapes_and_long_lines_are_searched() {
    let mut entries = Vec::new();
    let mut expected = Vec::new();
    for number in 1..=400_i64 {
        let size = usize::try_from(number * 7919 % 6_007).unwrap();
        let word = if number % 37 == 0 {
            "zebrafish"
        } else {
            "catfish"
        };
        let size = if number == 200 { 700_000 } else { size };
        entries.push(Entry::message(
            "user",
            format!("{number} {}{word}", "x ".repeat(size)),
        ));
        if number % 37 == 0 {
            expected.insert(0, number);
        }
    }
    for place in places() {
        place
            .tape
            .store()
            .append(&name(), entries.clone())
            .await
            .unwrap();
        let found = place.tape.search(&Search::new("zebrafish")).await.unwrap();
        assert_eq!(ids(&found), expected, "{}", place.label);
        let oldest = place
            .tape
            .query_all(Query::new().text("ZebraFish"))
            .await
            .unwrap();
        assert_eq!(oldest.len(), expected.len(), "{}", place.label);
    }
}

/// Text without an end of words is searched in time that grows with its length only.
#[tokio::test]
async fn monotonous_text_is_no_trap() {
    let text = format!("{}aaab", "a".repeat(60_000));
    for place in places() {
        place
            .tape
            .append(Entry::message("user", text.clone()))
            .await
            .unwrap();
        let found = place.tape.search(&Search::new("aaaaaaabc")).await.unwrap();
        assert_eq!(ids(&found), [1], "{}", place.label);
        assert_eq!(
            ids(&place.tape.search(&Search::new("aaxbbc")).await.unwrap()),
            [0; 0]
        );
    }
}
