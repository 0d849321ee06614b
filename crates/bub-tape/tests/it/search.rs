//! Searches give the same results in all stores.

use crate::view_support::{call, name, store_fixtures};
use bub_tape::{
    Entry, EntryKind, MergeBack, Query, SEARCH_MARKER, Search, SearchResults, TapeErrorKind,
};
use serde_json::json;

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

fn ids(results: &SearchResults) -> Vec<i64> {
    results.hits.iter().map(|hit| hit.entry.id.get()).collect()
}

async fn check(search: Search, expected: &[i64]) {
    for fixture in store_fixtures() {
        fixture.tape.store().append(&name(), story()).await.unwrap();
        let fork = fixture.tape.fork(MergeBack::No).await.unwrap();
        for (label, tape) in [("", &fixture.tape), ("fork of ", fork.tape())] {
            let results = tape.search(&search).await.unwrap();
            assert_eq!(
                ids(&results),
                expected,
                "{search:?} in {label}{}",
                fixture.label
            );
        }
    }
}

/// W-20, H-53: text in any script, with quotes, in any case. Exact matches come first, newest first, then fuzzy ones.
/// Equal payloads are listed once.
#[tokio::test]
async fn words_are_found_in_every_script() {
    let cases: [(&str, &[i64]); 21] = [
        ("zebrafish", &[9, 6, 5]),
        ("  ZEBRAFISH ", &[9, 6, 5]),
        ("zebrafsh", &[5, 9, 6]),
        ("the zebrafish", &[9, 6, 5]),
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
        // All words, in any order, each with a typing error.
        ("deploymnt dockr", &[11]),
        ("deployment in docker", &[11]),
        ("deployment of cats", &[11]),
        ("xylophone", &[]),
        // Roles and types are not searched.
        ("user", &[]),
        // Too short for typing errors.
        ("zq", &[]),
        ("no", &[]),
    ];
    for (text, expected) in cases {
        check(Search::new(text), expected).await;
    }
}

/// H-53: without fuzzy matches, only exact ones are found.
#[tokio::test]
async fn fuzzy_matches_can_be_omitted() {
    check(Search::new("zebrafish").exact_only(), &[9, 6]).await;
    check(Search::new("zebrafsh").exact_only(), &[5]).await;
    check(Search::new("zebrafishes").exact_only(), &[]).await;
}

/// H-116: kinds, dates with one end, and a limit narrow the search.
#[tokio::test]
async fn kinds_dates_and_limit_narrow_the_search() {
    let within = |query: Query| Search::new("zebrafish").within(query);
    check(within(Query::new()), &[9, 8, 1, 6, 5]).await;
    check(within(Query::new().kinds([EntryKind::Event])), &[8]).await;
    check(within(Query::new().since("2026-01-03")), &[9, 8]).await;
    check(within(Query::new().until("2026-01-01")), &[2, 1]).await;
    check(
        within(Query::new().until("2026-01-02").after_last_anchor()),
        &[2, 6, 5],
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
    for fixture in store_fixtures() {
        let search = Search::new("x").within(Query::new().since("soon"));
        let error = fixture.tape.search(&search).await.unwrap_err();
        assert_eq!(error.kind(), TapeErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "Invalid ISO date or datetime: 'soon'.");
    }
}

/// H-116: the output of an earlier search is counted but not listed.
#[tokio::test]
async fn a_search_does_not_find_itself() {
    for fixture in store_fixtures() {
        fixture.tape.store().append(&name(), story()).await.unwrap();
        let results = fixture
            .tape
            .search(&Search::new("zebrafish"))
            .await
            .unwrap();
        assert_eq!(
            (results.hits.len(), results.filtered),
            (3, 1),
            "{}",
            fixture.label
        );
    }
}

/// W-20: entries of the running turn are searched too, also inside a fork.
#[tokio::test]
async fn the_running_turn_is_searched_and_filtered() {
    for fixture in store_fixtures() {
        fixture.tape.store().append(&name(), story()).await.unwrap();
        let fork = fixture.tape.fork(MergeBack::Yes).await.unwrap();
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
        let results = fork
            .tape()
            .search(&Search::new("zebrafish").exact_only())
            .await
            .unwrap();
        assert_eq!(ids(&results), [13, 9, 6], "{}", fixture.label);
    }
}

/// A snippet shows the text around the match on one line.
#[tokio::test]
async fn snippets_show_the_surroundings() {
    for fixture in store_fixtures() {
        let long = format!(
            "{}\n\tthe   ZEBRAFISH\n{}",
            "ä ".repeat(200),
            "ö ".repeat(200)
        );
        fixture
            .tape
            .append(Entry::message("user", long))
            .await
            .unwrap();
        fixture
            .tape
            .append(Entry::message("user", "short zebrafsh"))
            .await
            .unwrap();
        let results = fixture
            .tape
            .search(&Search::new("zebrafish"))
            .await
            .unwrap();
        let [exact, near] = &results.hits[..] else {
            panic!("{results:?}")
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

/// Matches in lines longer than a block and at the borders of blocks are found.
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
    for fixture in store_fixtures() {
        fixture
            .tape
            .store()
            .append(&name(), entries.clone())
            .await
            .unwrap();
        let results = fixture
            .tape
            .search(&Search::new("zebrafish"))
            .await
            .unwrap();
        let mut found = ids(&results);
        found.sort_by_key(|id| std::cmp::Reverse(*id));
        assert_eq!(found, expected, "{}", fixture.label);
        let oldest = fixture
            .tape
            .query_all(Query::new().text("ZebraFish"))
            .await
            .unwrap();
        assert_eq!(oldest.len(), expected.len(), "{}", fixture.label);
    }
}

/// The time to search text without word boundaries grows linearly with its length.
#[tokio::test]
async fn monotonous_text_is_no_trap() {
    let text = format!("{}aaab", "a".repeat(60_000));
    for fixture in store_fixtures() {
        fixture
            .tape
            .append(Entry::message("user", text.clone()))
            .await
            .unwrap();
        let results = fixture
            .tape
            .search(&Search::new("aaaaaaabc"))
            .await
            .unwrap();
        assert_eq!(ids(&results), [0; 0], "{}", fixture.label);
        assert_eq!(
            ids(&fixture.tape.search(&Search::new("aaxbbc")).await.unwrap()),
            [0; 0]
        );
    }
}

/// The context that channels put before a message names its sender. It is not part of what was said.
#[tokio::test]
async fn the_context_of_a_message_is_not_searched() {
    let said = |text: &str| {
        let context =
            "sender_id=ada|channel=$telegram|chat_id=4711\n---Date: 2026-01-02T03:04:05+00:00---\n";
        Entry::message("user", format!("{context}{text}"))
    };
    for fixture in store_fixtures() {
        let quoted = "The log says:\n---Date: 2026-01-02---\ndone";
        let entries = vec![said("Feed the cats"), Entry::message("assistant", quoted)];
        fixture.tape.store().append(&name(), entries).await.unwrap();
        for (text, expected) in [
            ("telegram", vec![]),
            ("4711", vec![]),
            ("cats from:ada", vec![1]),
            ("log", vec![2]),
        ] {
            let results = fixture.tape.search(&Search::new(text)).await.unwrap();
            assert_eq!(ids(&results), expected, "{text} in {}", fixture.label);
        }
        let results = fixture.tape.search(&Search::new("cats")).await.unwrap();
        assert_eq!(results.hits[0].snippet, "Feed the cats");
    }
}

/// The model of a turn does not find its own question and what it sees, but what a handoff during the turn removed.
#[tokio::test]
async fn a_search_outside_of_a_turn_omits_what_its_model_sees() {
    let run = |entry: Entry, id: &str| entry.with_meta("run_id", id);
    for fixture in store_fixtures() {
        let output = |text: &str| Entry::tool_result(vec![text.into()]);
        let entries = vec![
            run(Entry::message("user", "the port is 7001"), "old"),
            run(Entry::message("user", "check the port"), "new"),
            run(output("port closed"), "new"),
            run(Entry::anchor("auto/window", None), "new"),
            run(output("port open"), "new"),
        ];
        fixture.tape.store().append(&name(), entries).await.unwrap();
        let all = Search::new("port");
        assert_eq!(fixture.tape.search(&all).await.unwrap().hits.len(), 4);
        let outside = all.outside_of_turn(&name(), "new");
        let results = fixture.tape.search(&outside).await.unwrap();
        assert_eq!(ids(&results), [1, 3], "{}", fixture.label);
    }
}

/// Earlier questions contain the words of a new one, but no answer.
#[tokio::test]
async fn questions_that_repeat_the_search_text_come_after_other_entries() {
    let chats = [
        (
            "Which port did I pick for the billing service of Falcon?",
            "For Falcon, please run the billing service on port 7001.",
            "Which port did I pick for the billing service of Harbor?",
        ),
        (
            "谁负责 Falcon 项目的验收？",
            "负责 Falcon 验收的同事叫王芳。",
            "谁负责 Harbor 项目的验收？",
        ),
    ];
    for (question, answer, other) in chats {
        for fixture in store_fixtures() {
            let texts = [answer, question, other, "Which port is it?"];
            let entries = texts.map(|text| Entry::message("user", text)).to_vec();
            fixture.tape.store().append(&name(), entries).await.unwrap();
            let results = fixture.tape.search(&Search::new(question)).await.unwrap();
            assert_eq!(
                ids(&results)[..2],
                [1, 2],
                "{question} in {}",
                fixture.label
            );
            // A phrase asks for the question itself.
            let phrase = Search::new(format!("\"{question}\""));
            assert_eq!(ids(&fixture.tape.search(&phrase).await.unwrap()), [2]);
        }
    }
    // A statement with the words of the question is an answer: the date of the entry is.
    let texts = [
        "I painted a sunrise by the lake",
        "painting is fun, sunrise or not",
    ];
    for fixture in store_fixtures() {
        let entries = texts.map(|text| Entry::message("user", text)).to_vec();
        fixture.tape.store().append(&name(), entries).await.unwrap();
        let search = Search::new("When did you paint a sunrise by the lake?");
        assert_eq!(ids(&fixture.tape.search(&search).await.unwrap()), [1, 2]);
    }
}

/// Words with a similar meaning count, but less than the word itself.
#[tokio::test]
async fn words_with_a_similar_meaning_are_found_after_exact_ones() {
    for fixture in store_fixtures() {
        let texts = [
            "my mom likes tea",
            "my mother likes coffee",
            "how long is it",
        ];
        let entries = texts.map(|text| Entry::message("user", text)).to_vec();
        fixture.tape.store().append(&name(), entries).await.unwrap();
        for (text, expected) in [
            ("mother", vec![2, 1]),
            ("moms", vec![1, 2]),
            ("How long ago was the mother there?", vec![2, 1]),
        ] {
            let results = fixture.tape.search(&Search::new(text)).await.unwrap();
            assert_eq!(ids(&results), expected, "{text}");
        }
        let exact = Search::new("mother").exact_only();
        assert_eq!(ids(&fixture.tape.search(&exact).await.unwrap()), [2]);
    }
}
