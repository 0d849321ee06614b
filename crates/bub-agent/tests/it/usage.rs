//! The daily limits and the usage report.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use bub_agent::usage::{GroupBy, TokenCounts, usage_report};
use bub_kernel::{ChannelMessage, Result, TurnResult};
use bub_model::{Catalog, Price};
use bub_tape::{Durability, Entry, FileStore, SessionInfo, Tape, TapeName};
use bub_testkit::model::{ModelServer, Reply, ReplyUsage};
use serde_json::json;

use crate::{
    harness::{AgentFixture, load_settings},
    recording::tape_of,
};

const TOKENS: &str = "BUB_USAGE_DAILY_TOKENS";
const COST: &str = "BUB_USAGE_DAILY_COST";
/// One dollar per million input tokens, ten dollars per million output tokens.
const PRICES: (&str, &str) = (
    "BUB_PROVIDERS",
    r#"{"llamacpp": {"prices": {"input": 1, "cached": 0.1, "output": 10}}}"#,
);

fn server() -> ModelServer {
    let server = ModelServer::start();
    server.otherwise(Reply::text("ok").usage(ReplyUsage {
        input: 900,
        output: 100,
        ..ReplyUsage::default()
    }));
    server
}

fn fixture(server: &ModelServer, variables: &[(&'static str, &str)]) -> AgentFixture {
    AgentFixture::asking_so(&server.url(), variables, |builder| builder)
}

async fn ask(fixture: &AgentFixture, session: &str) -> Result<TurnResult> {
    fixture
        .turn(ChannelMessage::new(session, "lab", "hi"))
        .await
}

fn ledger(fixture: &AgentFixture) -> Option<std::path::PathBuf> {
    let mut files = std::fs::read_dir(fixture.dir.path().join("home/usage")).ok()?;
    files.next().map(|file| file.unwrap().path())
}

#[tokio::test]
async fn tokens_of_a_day_have_a_cap_that_says_what_how_much_and_until_when() {
    let server = server();
    let fixture = fixture(&server, &[(TOKENS, "2000")]);
    let running = fixture.framework.open_scope().await.unwrap();
    // Two calls of 1000 tokens are allowed, in any session, but not a third.
    ask(&fixture, "one").await.unwrap();
    ask(&fixture, "two").await.unwrap();
    let error = ask(&fixture, "one").await.unwrap_err();
    let expected = "daily limit reached: 2000 of 2000 tokens (`usage.daily_tokens`); it resets at ";
    assert!(
        error.message().starts_with(expected) && error.message().contains(" 00:00"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 2, "the model was not called");
    let entries = tape_of(&fixture, "one")
        .entries(bub_tape::EntryRange::ALL)
        .await
        .unwrap();
    let recorded = entries.iter().any(|entry| {
        entry.kind == bub_tape::EntryKind::Error
            && entry.payload["message"]
                .as_str()
                .unwrap()
                .starts_with(expected)
    });
    assert!(recorded, "{entries:?}");
    running.close().await.unwrap();
}

#[tokio::test]
async fn cost_of_a_day_has_a_cap() {
    let server = server();
    // A call costs 900 * $1 + 100 * $10 per million tokens: $0.0019.
    let fixture = fixture(&server, &[(COST, "0.003"), PRICES]);
    let running = fixture.framework.open_scope().await.unwrap();
    ask(&fixture, "s").await.unwrap();
    ask(&fixture, "s").await.unwrap();
    let error = ask(&fixture, "s").await.unwrap_err();
    assert!(
        error
            .message()
            .contains("$0.0038 of $0.0030 (`usage.daily_cost`)"),
        "{error}"
    );
    running.close().await.unwrap();
}

#[tokio::test]
async fn a_price_that_is_not_known_is_never_nothing() {
    let server = server();
    let unknown = ("BUB_FALLBACK_MODELS", "openai:mystery");
    let refusing = fixture(&server, &[(COST, "1"), unknown]);
    let running = refusing.framework.open_scope().await.unwrap();
    let error = ask(&refusing, "s").await.unwrap_err();
    assert!(
        error
            .message()
            .contains("the price of openai:mystery is unknown"),
        "{error}"
    );
    assert!(
        error.message().contains("`providers.openai.prices`"),
        "{error}"
    );
    assert!(server.requests().is_empty());
    running.close().await.unwrap();
    // With a token limit in addition, the token limit applies.
    let counting = fixture(&server, &[(COST, "1"), (TOKENS, "1000"), unknown]);
    let running = counting.framework.open_scope().await.unwrap();
    ask(&counting, "s").await.unwrap();
    assert!(
        ask(&counting, "s")
            .await
            .unwrap_err()
            .message()
            .contains("usage.daily_tokens")
    );
    running.close().await.unwrap();
}

#[tokio::test]
async fn what_is_not_counted_by_the_provider_is_estimated() {
    // A server that reports no usage.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap() > 2 {
                let lower = line.to_lowercase();
                length = lower
                    .strip_prefix("content-length: ")
                    .map_or(length, |text| text.trim().parse().unwrap());
                line.clear();
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let body = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"an answer\"}, \
                        \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n";
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            stream
                .get_mut()
                .write_all(format!("{head}{body}").as_bytes())
                .unwrap();
        }
    });
    let fixture = AgentFixture::asking_so(&url, &[(TOKENS, "10")], |builder| builder);
    let running = fixture.framework.open_scope().await.unwrap();
    ask(&fixture, "s").await.unwrap();
    assert_eq!(
        tape_of(&fixture, "s").summary().await.unwrap().usage,
        None,
        "the server counts nothing"
    );
    let error = ask(&fixture, "s").await.unwrap_err();
    assert!(error.message().contains("of 10 tokens"), "{error}");
    running.close().await.unwrap();
}

#[tokio::test]
async fn other_processes_count_and_the_ledger_is_derived() {
    let server = server();
    let fixture = fixture(&server, &[(TOKENS, "5000")]);
    let running = fixture.framework.open_scope().await.unwrap();
    ask(&fixture, "s").await.unwrap();
    let path = ledger(&fixture).unwrap();
    let before = std::fs::read_to_string(&path).unwrap();
    assert!(before.contains(r#""prompt_tokens":900"#), "{before}");
    // Another process adds a call, and one dies while it writes.
    let other =
        r#"{"model": "llamacpp:test", "usage": {"prompt_tokens": 3000, "completion_tokens": 0}}"#;
    std::fs::write(&path, format!("{before}\n{other}\n{{\"model\": \"lla")).unwrap();
    ask(&fixture, "s").await.unwrap();
    let error = ask(&fixture, "s").await.unwrap_err();
    assert!(error.message().contains("5000 of 5000"), "{error}");
    // If the file is missing, the tapes give the same result as before: two calls.
    std::fs::remove_file(&path).unwrap();
    for _ in 0..3 {
        ask(&fixture, "s").await.unwrap();
    }
    assert!(
        ask(&fixture, "s")
            .await
            .unwrap_err()
            .message()
            .contains("5000 of 5000")
    );
    running.close().await.unwrap();
}

#[tokio::test]
async fn a_call_that_cannot_be_written_down_counts_all_the_same() {
    let home = tempfile::TempDir::new().unwrap();
    let usage = home.path().join("usage");
    let (aside, server) = (usage.join("aside"), ModelServer::start());
    let (place, kept) = (usage.clone(), aside.clone());
    // During the model call, a directory replaces the ledger.
    server.answer_with(move |_| {
        let ledger = std::fs::read_dir(&place)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        std::fs::rename(&ledger, &kept).unwrap();
        std::fs::create_dir(ledger).unwrap();
        Reply::text("ok").usage(ReplyUsage {
            input: 900,
            output: 100,
            ..ReplyUsage::default()
        })
    });
    let fixture = fixture(
        &server,
        &[
            (TOKENS, "2000"),
            ("BUB_HOME", home.path().to_str().unwrap()),
        ],
    );
    let running = fixture.framework.open_scope().await.unwrap();
    for _ in 0..2 {
        ask(&fixture, "s").await.unwrap();
        let mut files = std::fs::read_dir(&usage)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let ledger = files.find(|path| path.is_dir()).unwrap();
        std::fs::remove_dir(&ledger).unwrap();
        std::fs::rename(&aside, &ledger).unwrap();
        assert!(
            !std::fs::read_to_string(ledger).unwrap().contains("900"),
            "it was written"
        );
    }
    let error = ask(&fixture, "s").await.unwrap_err();
    assert!(error.message().contains("2000 of 2000"), "{error}");
    running.close().await.unwrap();
}

#[tokio::test]
async fn without_a_cap_nothing_is_written() {
    let server = server();
    let fixture = fixture(&server, &[]);
    let running = fixture.framework.open_scope().await.unwrap();
    ask(&fixture, "s").await.unwrap();
    assert_eq!(ledger(&fixture), None);
    running.close().await.unwrap();
}

#[test]
fn tokens_are_read_and_priced_by_kind() {
    let usage = json!({
        "prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
    });
    let tokens = TokenCounts::from_usage(&usage).unwrap();
    assert_eq!(
        tokens,
        TokenCounts {
            input: 1000,
            cached: 600,
            cache_write: 100,
            output: 50
        }
    );
    let price = Price {
        input: 2.0,
        cached: 0.2,
        cache_write: 2.5,
        output: 10.0,
    };
    // 300 * 2 + 600 * 0.2 + 100 * 2.5 + 50 * 10
    assert!((tokens.cost(price) - 0.001_47).abs() < 1e-12);
    let sum_only = TokenCounts::from_usage(&json!({"total_tokens": 70})).unwrap();
    assert_eq!((sum_only.input, sum_only.total()), (70, 70));
    // Contradictory counts are used as far as possible and never cause a panic.
    let odd = json!({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9, "cache_write_tokens": 9}});
    assert_eq!(
        TokenCounts::from_usage(&odd).unwrap(),
        TokenCounts {
            input: 5,
            cached: 5,
            ..TokenCounts::default()
        }
    );
    assert_eq!(TokenCounts::from_usage(&json!({})), None);
}

#[tokio::test]
async fn a_report_adds_up_runs_and_those_of_subagents() {
    let dir = tempfile::TempDir::new().unwrap();
    let store = FileStore::new(dir.path(), Durability::Os);
    let run = |name: &str, model: &str, input: u64, date: &str| {
        let usage = json!({"prompt_tokens": input, "completion_tokens": 0, "total_tokens": input});
        Entry::event(
            name,
            Some(json!({"status": "ok", "model": model, "usage": usage})),
        )
        .with_date(date)
    };
    for (session, entries) in [
        (
            "a",
            vec![
                run(
                    "run",
                    "openai:gpt-4o",
                    1_000_000,
                    "2026-11-10T12:00:00+00:00",
                ),
                run(
                    "subagent.run",
                    "openai:mystery",
                    7,
                    "2026-11-12T12:00:00+00:00",
                ),
                Entry::message("user", "\"usage\" of run\" is what I ask about"),
            ],
        ),
        (
            "b",
            vec![run(
                "run",
                "openai:gpt-4o",
                2_000_000,
                "2026-11-12T12:00:00+00:00",
            )],
        ),
    ] {
        let tape = Tape::new(
            std::sync::Arc::new(store.clone()),
            TapeName::for_session("/w", session),
        );
        tape.append(SessionInfo::new(session).to_event())
            .await
            .unwrap();
        tape.append_all(entries).await.unwrap();
    }
    let settings = load_settings([("HOME", dir.path())]);
    let catalog = Catalog::new(&settings).unwrap();
    let shown = async |by, since: Option<&str>| {
        let (rows, sum, unread) = usage_report(&store, &catalog, by, since).await.unwrap();
        assert_eq!(unread, Vec::<String>::new());
        let short = |row: bub_agent::usage::UsageRow| {
            (
                row.name,
                row.calls,
                row.tokens.input,
                row.cost,
                row.unpriced,
            )
        };
        (rows.into_iter().map(short).collect::<Vec<_>>(), sum.calls)
    };
    let row =
        |name: &str, calls, input, cost, unpriced| (name.to_owned(), calls, input, cost, unpriced);
    let model = vec![
        row("openai:gpt-4o", 2, 3_000_000, 7.5, 0),
        row("openai:mystery", 1, 7, 0.0, 1),
    ];
    assert_eq!(shown(GroupBy::Model, None).await, (model, 3));
    let session = vec![
        row("a", 2, 1_000_007, 2.5, 1),
        row("b", 1, 2_000_000, 5.0, 0),
    ];
    assert_eq!(shown(GroupBy::Session, None).await, (session, 3));
    // Noon in UTC may be the next day in the far east, but the two days stay apart.
    let (days, _) = shown(GroupBy::Day, None).await;
    assert_eq!(
        days.iter().map(|day| (day.1, day.2)).collect::<Vec<_>>(),
        [(1, 1_000_000), (2, 2_000_007)]
    );
    assert_eq!(shown(GroupBy::Day, Some("2026-11-11")).await.1, 2);
    assert!(
        usage_report(&store, &catalog, GroupBy::Day, Some("soon"))
            .await
            .unwrap_err()
            .message()
            .contains("invalid date `soon`")
    );
}
