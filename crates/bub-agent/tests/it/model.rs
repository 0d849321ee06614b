//! The builtin agent with a real model server.

use bub_kernel::{ChannelMessage, ErrorKind};
use bub_tape::{EntryKind, EntryRange};
use bub_testkit::model::{Finish, ModelServer, Reply, ReplyUsage};

use crate::{harness::AgentFixture, recording::tape_of};

fn fixture(server: &ModelServer) -> AgentFixture {
    AgentFixture::asking(&server.url())
}

// S-31, W-8: the prompt is on the tape before the answer, and the next turn sees both.
#[tokio::test]
async fn a_model_answers_and_remembers() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["Hel", "lo"]).usage(ReplyUsage {
        input: 10,
        output: 2,
        ..ReplyUsage::default()
    }));
    server.script(Reply::text("Again"));
    let fixture = fixture(&server);
    let running = fixture.framework.open_scope().await.unwrap();
    let first = fixture
        .turn(ChannelMessage::new("s", "lab", "first question"))
        .await
        .unwrap();
    assert_eq!(first.model_output, "Hello");
    fixture
        .turn(ChannelMessage::new("s", "lab", "second question"))
        .await
        .unwrap();

    let request = server.requests().last().unwrap().json();
    let roles: Vec<_> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "user"],
        "{request:#}"
    );
    assert!(
        request["messages"][1]["content"]
            .as_str()
            .unwrap()
            .ends_with("first question")
    );
    assert_eq!(request["messages"][2]["content"], "Hello");
    assert!(
        request["messages"][3]["content"]
            .as_str()
            .unwrap()
            .ends_with("second question")
    );

    let summary = tape_of(&fixture, "s").summary().await.unwrap();
    assert_eq!(summary.prompts.len(), 1, "the system prompt is stored once");
    running.close().await.unwrap();
}

// W-8, W-10: a failed call leaves the prompt and the error; the message of the server is reported in one line.
#[tokio::test]
async fn a_refused_call_fails_the_turn_and_is_recorded() {
    let server = ModelServer::start();
    server.otherwise(Reply::status(401).message("no such key"));
    let fixture = fixture(&server);
    let running = fixture.framework.open_scope().await.unwrap();
    let error = fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Provider);
    assert!(error.to_string().contains("no such key"), "{error}");
    let entries = tape_of(&fixture, "s")
        .entries(EntryRange::ALL)
        .await
        .unwrap();
    let kinds: Vec<_> = entries
        .iter()
        .skip(2)
        .map(|entry| entry.kind.clone())
        .collect();
    let (event, error) = (EntryKind::Event, EntryKind::Error);
    assert_eq!(
        kinds,
        [
            event.clone(),
            EntryKind::Message,
            event.clone(),
            event.clone(),
            EntryKind::System,
            error,
            event.clone(),
            event
        ]
    );
    running.close().await.unwrap();
}

// W-6: a truncated answer is never taken for a complete one.
#[tokio::test]
async fn an_answer_cut_off_by_its_limit_is_reported() {
    struct ErrorRecorder(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    #[bub_kernel::hooks(crate = bub_kernel)]
    impl ErrorRecorder {
        fn on_error(&self, stage: &str, error: &bub_kernel::Error) {
            self.0.lock().unwrap().push(format!("{stage}: {error}"));
        }
    }

    let server = ModelServer::start();
    server.script(Reply::text("The answer is").finish(Finish::Length));
    // Also if tool calls came with it and the model continues after them.
    server.script(
        Reply::new()
            .call("c", "fs_list", "{}")
            .finish(Finish::Filter),
    );
    server.script(Reply::text("well"));
    let seen = std::sync::Arc::default();
    let fixture = AgentFixture::asking_with(
        &server.url(),
        "watching",
        ErrorRecorder(std::sync::Arc::clone(&seen)),
    );
    let result = fixture
        .turn(ChannelMessage::new("s", "lab", "hi"))
        .await
        .unwrap();
    assert_eq!(result.model_output, "The answer is");
    assert_eq!(
        fixture
            .turn(ChannelMessage::new("s", "lab", "go on"))
            .await
            .unwrap()
            .model_output,
        "well"
    );
    let seen = seen.lock().unwrap();
    assert_eq!(
        *seen,
        [
            "run_model: [provider] the answer is incomplete: it reached the `max_tokens` limit; raise the setting",
            "run_model: [provider] the answer is incomplete: the provider's content filter stopped it; rephrase the request",
        ]
    );
}
