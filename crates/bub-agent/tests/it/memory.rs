//! The tool `memory.search`: who can find what.

use std::sync::Arc;

use bub_kernel::{ChannelMessage, Inbound, Role, Sender};
use bub_tape::{Durability, Entry, FileStore, SessionInfo, Tape, TapeName};
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
async fn fixture(chats: &[(&str, &[&str])], is_allowed: bool) -> AgentFixture {
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
        let store = FileStore::new(fixture.dir.path().join("home/tapes"), Durability::Os);
        let name = TapeName::for_session(&workspace, &session.session_id);
        let tape = Tape::new(Arc::new(store), name);
        tape.ensure_bootstrap(&session).await.unwrap();
        for text in *texts {
            tape.append(Entry::message("user", *text)).await.unwrap();
        }
    }
    fixture
}

/// Returns the output of a search of a sender in chat `1`, without dates.
async fn search(fixture: &AgentFixture, role: Role, query: &str) -> String {
    let line = format!(",memory.search query={}", shell_quote(query));
    let turn = fixture.turn(message(role, "1", &line));
    let output = match fixture.framework.run_scoped(turn).await {
        Ok(result) => result.model_output,
        Err(error) => error.to_string(),
    };
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
    let fixture = fixture(&[("1", &OWN), ("2", &OTHER)], false).await;
    let found = search(&fixture, Role::Owner, SECRET).await;
    assert!(
        found.contains("lab:2\n") && found.contains("zanzibar harbor password"),
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
    let (alone, shared) = runtime.block_on(async {
        (
            fixture(&[("1", &OWN)], true).await,
            fixture(&[("1", &OWN), ("2", &OTHER)], true).await,
        )
    });
    let words = "zanzibar|zanzibor|harbor|lantern|password|golden|港口|midnight|opens|kind:message|kind:event|from:ada|\
                 from:user|-harbor|\"zanzibar harbor\"|before:2099-01-01|after:2001-01-01|before:soon|session:2|lab:2|*|-";
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
        let [alone, shared] = [&alone, &shared]
            .map(|fixture| runtime.block_on(search(fixture, Role::Member, &query)));
        prop_assert!(
            !OTHER.iter().any(|text| shared.contains(text)),
            "{}: {}",
            query,
            shared
        );
        prop_assert_eq!(alone, shared, "{}", query);
        Ok(())
    });
    checked.unwrap();
}
