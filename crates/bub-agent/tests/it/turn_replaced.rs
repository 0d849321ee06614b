//! Turns in which a plugin passes other prompts to the builtin agent than the recorded one.

use std::time::Duration;

use bub_kernel::{
    CancellationToken, ChannelMessage, Inbound, ModelStream, Prompt, Result, StreamEvent, hooks,
    hooks::{Next, args, point::RunModelStream},
};
use bub_tape::{Entry, EntryKind};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::{AgentFixture, owned},
    recording::tape_of,
    turn_crash::delivered_as,
    turn_loop::{entries, events, shown},
};

/// Passes these prompts to the agent one after the other, and returns its answers.
struct PromptingPlugin(&'static [&'static str]);

#[hooks(crate = bub_kernel)]
impl PromptingPlugin {
    async fn run_model_stream(
        &self,
        next: Next<'_, RunModelStream>,
    ) -> Result<Option<ModelStream>> {
        let mut outputs = Vec::new();
        for prompt in self.0 {
            let prompt = Prompt::from(*prompt);
            let mut stream = next
                .with_args(args::RunModelStream {
                    prompt: &prompt,
                    ..next.args()
                })
                .call()
                .await?;
            while let Some(event) = match &mut stream {
                Some(stream) => futures_util::StreamExt::next(stream).await,
                None => None,
            } {
                if let StreamEvent::Text(text) = event? {
                    outputs.push(StreamEvent::Text(text));
                }
            }
        }
        Ok(Some(ModelStream::from_events(outputs)))
    }
}

fn message(text: &str) -> Inbound {
    owned(ChannelMessage::new("s", "lab", text))
}

fn contents(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .filter_map(|message| message["content"].as_str())
        .collect()
}

fn user_messages(entries: &[Entry]) -> Vec<&Entry> {
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Message && entry.payload["role"] == "user")
        .collect()
}

// Design §3: every stage can be replaced. The model gets the prompt that the plugin passes on, also in later turns.
// The user's message stays on the tape, and the tape records which of the two was shown.
#[tokio::test]
async fn what_a_plugin_asks_in_place_of_the_question_is_what_the_model_sees() {
    let server = ModelServer::start();
    server.script(Reply::text("four"));
    server.script(Reply::text("four again"));
    let fixture =
        AgentFixture::asking_with(&server.url(), "asking", PromptingPlugin(&["two and two?"]));
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture.turn(message("my secret: 2+2?")).await.unwrap();
    assert_eq!(result.model_output, "four");
    let seen = shown(&server);
    assert!(contents(&seen).contains(&"two and two?"), "{seen:?}");
    assert!(
        !seen
            .iter()
            .any(|message| message.to_string().contains("secret")),
        "{seen:?}"
    );

    let recorded = entries(&fixture, "s").await;
    let prompts = user_messages(&recorded);
    assert_eq!(prompts.len(), 2, "{prompts:?}");
    assert!(
        prompts[0].payload["content"]
            .as_str()
            .unwrap()
            .contains("my secret")
    );
    assert_eq!(
        (&prompts[1].payload["content"], &prompts[1].meta["replaces"]),
        (&json!("two and two?"), &json!(prompts[0].id))
    );
    let view = events(&recorded, "loop.step.start")[0]["view"].to_string();
    assert!(view.contains(&prompts[1].id.to_string()), "{view}");

    fixture.turn(message("once more")).await.unwrap();
    let later = shown(&server);
    assert!(
        !later
            .iter()
            .any(|message| message.to_string().contains("secret")),
        "{later:?}"
    );
    assert_eq!(
        contents(&later)
            .iter()
            .filter(|text| **text == "two and two?")
            .count(),
        2,
        "{later:?}"
    );
    running.close().await.unwrap();
}

// A plugin that calls the agent again after an answer continues from there: the answer stays in the context, before
// the new prompt.
#[tokio::test]
async fn a_further_question_of_a_plugin_follows_the_answer() {
    let server = ModelServer::start();
    server.script(Reply::text("a draft. "));
    server.script(Reply::text("better"));
    let fixture = AgentFixture::asking_with(
        &server.url(),
        "asking",
        PromptingPlugin(&["write", "make it better"]),
    );
    let running = fixture.framework.open_scope().await.unwrap();
    let result = fixture.turn(message("a poem")).await.unwrap();
    assert_eq!(result.model_output, "a draft. better");
    let seen = shown(&server);
    assert_eq!(
        contents(&seen)[seen.len() - 3..],
        ["write", "a draft. ", "make it better"]
    );
    running.close().await.unwrap();
}

// A command that a plugin turns into a prompt is recorded as a prompt, with its answer.
#[tokio::test]
async fn a_command_that_a_plugin_turns_into_a_question_is_recorded() {
    let server = ModelServer::start();
    server.script(Reply::text("a place to live"));
    let fixture = AgentFixture::asking_with(
        &server.url(),
        "asking",
        PromptingPlugin(&["what is a home?"]),
    );
    let running = fixture.framework.open_scope().await.unwrap();
    fixture.turn(message(",home")).await.unwrap();
    assert!(contents(&shown(&server)).contains(&"what is a home?"));
    let recorded = entries(&fixture, "s").await;
    assert_eq!(user_messages(&recorded).len(), 1);
    running.close().await.unwrap();
}

// A command that a plugin runs first does not complete the record of the prompt that follows it.
#[tokio::test]
async fn a_question_after_a_command_is_recorded_also_when_it_is_cancelled() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["half", " an answer"]).hang_after(2));
    let asking = PromptingPlugin(&[",echo hi", "what is a home?"]);
    let fixture = AgentFixture::asking_with(&server.url(), "asking", asking);
    let running = fixture.framework.open_scope().await.unwrap();
    let cancel = CancellationToken::new();
    let canceller = async {
        while server.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    };
    let turn = fixture.turn(message(",home").with_cancel(cancel.clone()));
    let (outcome, ()) = tokio::join!(turn, canceller);
    outcome.unwrap_err();
    let recorded = entries(&fixture, "s").await;
    assert_eq!(events(&recorded, "command")[0]["status"], "ok");
    assert_eq!(user_messages(&recorded).len(), 1);
    let steps = events(&recorded, "loop.step");
    assert_eq!(steps.last().unwrap()["status"], "error");
    let errors = recorded
        .iter()
        .filter(|entry| entry.kind == EntryKind::Error);
    assert_eq!(errors.count(), 1);
    running.close().await.unwrap();
}

// Design §5: after a crash the turn continues with the replaced prompt. Neither of the two prompts is recorded again.
#[tokio::test]
async fn a_killed_turn_goes_on_with_what_was_asked_instead() {
    let server = ModelServer::start();
    server.script(Reply::text("four"));
    let fixture =
        AgentFixture::asking_with(&server.url(), "asking", PromptingPlugin(&["two and two?"]));
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&bub_tape::SessionInfo::new("s"))
        .await
        .unwrap();
    let of_run = |entry: Entry| {
        entry
            .with_meta("run_id", "run-1")
            .with_meta("inbound_id", "in-7")
    };
    let question = tape
        .append(of_run(Entry::message("user", "my secret: 2+2?")))
        .await
        .unwrap();
    let instead =
        of_run(Entry::message("user", "two and two?")).with_meta("replaces", question.get());
    tape.append(instead).await.unwrap();
    let mut step = bub_tape::StepRecord::new("run-1");
    let function = json!({"name": "tape_info", "arguments": "{}"});
    step.tool_calls = vec![json!({"id": "a", "type": "function", "function": function})];
    tape.record_step(step).await.unwrap();

    let result = fixture
        .turn(delivered_as("in-7", "my secret: 2+2?", 2))
        .await
        .unwrap();
    assert_eq!(result.model_output, "four");
    let seen = shown(&server);
    let roles: Vec<_> = seen
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool"], "{seen:?}");
    assert_eq!(contents(&seen)[0], "two and two?");
    let recorded = entries(&fixture, "s").await;
    let for_message = |entry: &&Entry| entry.meta.contains_key("inbound_id");
    assert_eq!(
        recorded.iter().filter(for_message).count(),
        2,
        "{recorded:?}"
    );
    running.close().await.unwrap();
}
