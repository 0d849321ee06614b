//! The tool `memory.search`: who can find what.

use std::sync::Arc;

use bub_kernel::{ChannelMessage, Inbound, Role, Sender};
use bub_tape::{Durability, Entry, FileStore, Search, SessionInfo, Tape, TapeName};
use proptest::prelude::*;
use serde_json::json;

use crate::harness::AgentFixture;

/// A word in every message of the other chat.
const SECRET: &str = "zanzibar";
const OWN: [&str; 4] = [
    "the harbor opens at nine",
    "we painted the lantern green",
    "zanzibor is a typing error of this chat",
    "明天去港口",
];
const OTHER: [&str; 4] = [
    "zanzibar harbor password",
    "the zanzibar lantern is golden, 港口",
    "zanzibar kind:message from:ada",
    "zanzibar opens at midnight",
];

fn message(role: Role, chat: &str, text: &str) -> Inbound {
    let sender = Sender {
        role,
        channel: "lab".to_owned(),
        chat_id: chat.to_owned(),
        id: "ada".to_owned(),
        name: "Ada".to_owned(),
    };
    let message = ChannelMessage::new(format!("lab:{chat}"), "lab", text);
    Inbound::from(message).with_sender(sender)
}

/// Returns a fixture in which members may use `memory.search`. The chat of the member is `1`.
async fn fixture<T: AsRef<str>>(chats: &[(&str, &[T])], is_allowed: bool) -> AgentFixture {
    let rules = if is_allowed {
        json!([{"tools": ["memory.search"], "roles": ["member"], "action": "allow"}])
    } else {
        json!([])
    };
    let variables = [("BUB_POLICY_RULES", rules.to_string())];
    let variables: Vec<(&'static str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let fixture = AgentFixture::asking_so("http://127.0.0.1:9", &variables, |builder| builder);
    let workspace = fixture.framework.workspace_text().to_owned();
    for (chat, texts) in chats {
        let session = SessionInfo {
            workspace: Some(workspace.clone()),
            channel: Some("lab".to_owned()),
            ..SessionInfo::new(format!("lab:{chat}"))
        };
        let tape = tape_of(&fixture, chat);
        tape.ensure_bootstrap(&session).await.unwrap();
        for text in *texts {
            tape.append(Entry::message("user", text.as_ref()))
                .await
                .unwrap();
        }
    }
    fixture
}

fn tape_of(fixture: &AgentFixture, chat: &str) -> Tape {
    let store = FileStore::new(fixture.dir.path().join("home/tapes"), Durability::Os);
    let session = format!("lab:{chat}");
    let name = TapeName::for_session(fixture.framework.workspace_text(), &session);
    Tape::new(Arc::new(store), name)
}

/// Returns messages of the other chat that are too many for an index in memory: once they are indexed, both chats share
/// a file of the index.
fn long_other() -> Vec<String> {
    let filler = |number: usize| {
        let words = format!("zanzibar lantern {number} ");
        words.repeat(200)
    };
    let other = OTHER.iter().map(|text| (*text).to_owned());
    other.chain((0..90).map(filler)).collect()
}

/// Returns the output of a search of a sender in chat `1`.
async fn search_output(fixture: &AgentFixture, role: Role, query: &str) -> String {
    let line = format!(",memory.search query={}", shell_quote(query));
    let turn = fixture.turn(message(role, "1", &line));
    match fixture.framework.run_scoped(turn).await {
        Ok(result) => result.model_output,
        Err(error) => error.to_string(),
    }
}

/// Returns the output of a search of a sender in chat `1`, without dates.
async fn search(fixture: &AgentFixture, role: Role, query: &str) -> String {
    let output = search_output(fixture, role, query).await;
    let without_date = |line: &str| match line.split_once("\"content\"") {
        Some((_, rest)) => rest.to_owned(),
        None => line.to_owned(),
    };
    output
        .lines()
        .map(without_date)
        .collect::<Vec<_>>()
        .join("\n")
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', ""))
}

#[tokio::test]
async fn owners_search_all_sessions_and_others_need_a_rule() {
    let fixture = fixture(&[("1", &OWN), ("annex", &OTHER)], false).await;
    let found = search(&fixture, Role::Owner, SECRET).await;
    assert!(
        found.contains("lab:annex\n") && found.contains("zanzibar harbor password"),
        "{found}"
    );
    for role in [Role::Member, Role::Guest] {
        let denied = search(&fixture, role, SECRET).await;
        assert!(
            denied.contains("denied by policy") && !denied.contains("harbor"),
            "{denied}"
        );
    }
}

// L7: whatever a member searches for, the answer is the same as if the other chat did not exist.
#[test]
fn a_member_finds_nothing_of_another_chat() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let own = OWN.map(str::to_owned);
    let other = long_other();
    let fixtures = runtime.block_on(async {
        let indexed = fixture(&[("1", &own[..]), ("annex", &other)], true).await;
        let [own_tape, other_tape] = ["1", "annex"].map(|chat| tape_of(&indexed, chat));
        let names = [own_tape.name().clone(), other_tape.name().clone()];
        let found = Search::new(SECRET).run(&**own_tape.store(), &names).await;
        assert!(!found.unwrap().hits.is_empty());
        let index = indexed.dir.path().join("home/tapes/.bub/search");
        assert!(index.join("0.seg").exists(), "the chats share no index");
        [
            fixture(&[("1", &own[..])], true).await,
            fixture(&[("1", &own[..]), ("annex", &other)], true).await,
            indexed,
        ]
    });
    // No digits: events of earlier searches contain durations, which differ.
    let words = "zanzibar|zanzibor|harbor|lantern|password|golden|港口|midnight|opens|kind:message|kind:event|from:ada|\
                 from:user|-harbor|\"zanzibar harbor\"|before:2099-01-01|after:2001-01-01|before:soon|session:annex|lab:annex|*|-";
    let words: Vec<&str> = words.split('|').collect();
    let query = proptest::collection::vec(proptest::sample::select(words), 1..5);
    let config = ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let checked = runner.run(&query, |words| {
        let query = words.join(" ");
        let [alone, shared, indexed] = fixtures
            .each_ref()
            .map(|fixture| runtime.block_on(search(fixture, Role::Member, &query)));
        for found in [&shared, &indexed] {
            let has_other = other.iter().any(|text| found.contains(text.trim_end()));
            prop_assert!(
                !has_other && !found.contains("lab:annex\n"),
                "{}: {}",
                query,
                found
            );
            prop_assert_eq!(&alone, found, "{}", query);
        }
        Ok(())
    });
    checked.unwrap();
}

#[tokio::test]
async fn the_output_of_a_search_of_all_sessions_is_not_found_again() {
    let fixture = fixture(&[("1", &OWN), ("annex", &OTHER)], false).await;
    let first = search_output(&fixture, Role::Owner, "harbor").await;
    assert!(
        first.starts_with("[tape.search]: 2 matches (0 filtered)\n"),
        "{first}"
    );
    let results = vec![first.into()];
    let tape = tape_of(&fixture, "annex");
    tape.append(Entry::tool_result(results)).await.unwrap();
    let second = search_output(&fixture, Role::Owner, "harbor").await;
    assert!(
        second.starts_with("[tape.search]: 2 matches (1 filtered)\n"),
        "{second}"
    );
}
