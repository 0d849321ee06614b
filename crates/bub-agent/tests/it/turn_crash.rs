//! Turns that continue from their tape after their process died.

use bub_kernel::{ChannelMessage, Inbound, InboundAttempt, SessionId};
use bub_tape::{Entry, EntryKind, SessionInfo, StepRecord, tool_done_event};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use crate::{
    harness::{AgentFixture, owned},
    recording::tape_of,
    turn_loop::{entries, events, shown},
};

fn delivered(text: &str, attempt: u32) -> Inbound {
    delivered_as("in-7", text, attempt)
}

/// Returns a journaled message of the user at the terminal.
pub(crate) fn delivered_as(id: &str, text: &str, number: u32) -> Inbound {
    let mut message = owned(ChannelMessage::new("s", "lab", text));
    message.attempt = Some(InboundAttempt {
        message_id: id.into(),
        number,
        is_durable: true,
    });
    message
}

fn session() -> SessionId {
    SessionId::from("s")
}

// Design §5: a killed turn continues from its tape. The message is not recorded again, a finished call is shown as
// done, an open call as interrupted, and neither runs again.
#[tokio::test]
async fn a_killed_turn_goes_on_from_its_tape() {
    let server = ModelServer::start();
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    let question = Entry::message("user", "go")
        .with_meta("run_id", "run-1")
        .with_meta("inbound_id", "in-7");
    tape.append(question).await.unwrap();
    let call = |id: &str| {
        let function = json!({"name": "bash", "arguments": "{\"cmd\": \"touch ran-again\"}"});
        json!({"id": id, "type": "function", "function": function})
    };
    let mut step = StepRecord::new("run-1");
    step.tool_calls = vec![call("a"), call("b")];
    tape.record_step(step).await.unwrap();
    tape.append(tool_done_event("a", "finished").with_meta("run_id", "run-1"))
        .await
        .unwrap();

    let result = fixture.turn(delivered("go", 2)).await.unwrap();
    assert_eq!(result.model_output, "done");
    let shown = shown(&server);
    let results: Vec<_> = shown
        .iter()
        .filter(|message| message["role"] == "tool")
        .collect();
    assert_eq!(results[0]["content"], "finished");
    assert_eq!(results[1]["content"], bub_tape::INTERRUPTED_RESULT);
    assert!(!fixture.dir.path().join("workspace/ran-again").exists());
    let entries = entries(&fixture, "s").await;
    let user_messages = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Message && entry.meta.get("inbound_id").is_some());
    assert_eq!(user_messages.count(), 1);
    assert_eq!(
        events(&entries, "turn.redelivered")[0]["outcome"],
        "resumed"
    );
    assert_eq!(events(&entries, "loop.step.start")[0]["step"], 2);
    running.close().await.unwrap();
}

// L3, L4: if another turn ran after the crash, the resumed turn continues at the end of the conversation, with its message
// and its tool calls. The model sees each of them once, also after a second crash.
#[tokio::test]
async fn a_killed_turn_goes_on_behind_a_turn_that_ran_since() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    let result = Entry::tool_result(vec!["finished".into()]).with_meta("call_ids", json!(["a"]));
    let of_other = |entry: Entry| entry.with_meta("run_id", "run-2");
    tape.append_all(vec![
        question(),
        open_call(),
        of_run(result),
        of_other(Entry::message("user", "another question")),
        of_other(Entry::message("assistant", "another answer")),
    ])
    .await
    .unwrap();
    for attempt in [2, 3] {
        let mut conversation = vec!["user", "assistant", "user", "assistant", "tool"];
        if attempt == 2 {
            // The process dies in the model call.
            server.script(Reply::status(400));
        } else {
            server.script(Reply::text("done"));
        }
        let _ = fixture.turn(delivered("go", attempt)).await;
        let shown = shown(&server);
        let start = shown
            .iter()
            .position(|message| message["content"] == "another question")
            .unwrap();
        let shown = &shown[start..];
        let roles: Vec<_> = shown
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        conversation.truncate(roles.len());
        assert_eq!(roles[..conversation.len()], conversation, "{shown:#?}");
        assert_eq!(shown[2]["content"], "go");
        assert_eq!(shown[4]["content"], "finished");
        let text = serde_json::to_string(shown).unwrap();
        assert_eq!(text.matches("\"go\"").count(), 1, "{text}");
        assert_eq!(text.matches("finished").count(), 1, "{text}");
        // P-35: the next step needs no prompt.
        assert_eq!(shown.len(), 5, "{shown:#?}");
    }
    running.close().await.unwrap();
}

// L1: steering messages for a turn that died reach it when it continues, or are left for the next turn.
#[tokio::test]
async fn what_waits_for_a_killed_turn_reaches_it_or_stays() {
    let server = ModelServer::start();
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    let question = Entry::message("user", "go")
        .with_meta("run_id", "run-1")
        .with_meta("inbound_id", "in-7");
    tape.append(question).await.unwrap();
    let function = json!({"name": "bash", "arguments": "{\"cmd\": \"true\"}"});
    let mut step = StepRecord::new("run-1");
    step.tool_calls = vec![json!({"id": "a", "type": "function", "function": function})];
    tape.record_step(step).await.unwrap();
    let inbox = fixture.framework.steering_inbox().unwrap();
    assert!(
        inbox
            .enqueue(
                &session(),
                owned(ChannelMessage::new("s", "lab", "to the left"))
            )
            .await
            .unwrap()
    );
    fixture.turn(delivered("go", 2)).await.unwrap();
    let said = shown(&server);
    assert!(
        said.iter()
            .any(|message| message["content"].to_string().contains("to the left")),
        "{said:?}"
    );
    assert_eq!(inbox.count(&session()), 0);
    // The turn is already answered, so it takes no more steering messages.
    assert!(
        inbox
            .enqueue(
                &session(),
                owned(ChannelMessage::new("s", "lab", "too late"))
            )
            .await
            .unwrap()
    );
    fixture.turn(delivered("go", 2)).await.unwrap();
    assert_eq!(inbox.count(&session()), 1);
    running.close().await.unwrap();
}

/// Adds a steering message to the inbox of the turn, as a separate delivery.
async fn steer(fixture: &AgentFixture, inbound_id: &str) {
    let message = delivered_as(inbound_id, &format!("said as {inbound_id}"), 2);
    let inbox = &fixture.framework;
    assert!(inbox.steer_message(&session(), message).await.unwrap());
}

/// The tape of a turn when its process dies, and the expected outcome.
struct CrashCase {
    entries: fn() -> Vec<Entry>,
    attempt: u32,
    /// The answer of the turn, or a part of its error.
    says: Result<&'static str, &'static str>,
    /// The steering messages that stay in the inbox.
    wait: usize,
    requests: usize,
}

fn of_run(entry: Entry) -> Entry {
    entry.with_meta("run_id", "run-1")
}

fn question() -> Entry {
    of_run(Entry::message("user", "go")).with_meta("inbound_id", "in-7")
}

fn heard() -> Entry {
    let said = Entry::message("user", "said as in-8").with_meta("steered", true);
    of_run(said).with_meta("inbound_id", "in-8")
}

fn open_call() -> Entry {
    let function = json!({"name": "bash", "arguments": "{\"cmd\": \"touch ran-again\"}"});
    of_run(Entry::tool_call(vec![
        json!({"id": "a", "type": "function", "function": function}),
    ]))
}

/// Returns an answer that ends its step.
fn answered(text: &str) -> [Entry; 2] {
    [
        of_run(Entry::message("assistant", text)),
        of_run(Entry::event("loop.step", Some(json!({"status": "ok"})))),
    ]
}

// L4, design §5: steering messages that are on the tape of a killed turn are not repeated, and are settled with it
// (they are no longer in the inbox). Those that are not on the tape are used now, or left for a separate turn.
#[tokio::test]
async fn a_killed_turn_has_heard_what_is_on_its_tape() {
    let cases = [
        // During a call that a steering message caused, after the prompt itself was answered.
        CrashCase {
            entries: || {
                [
                    vec![question()],
                    answered("first").into(),
                    vec![heard(), open_call()],
                ]
                .concat()
            },
            attempt: 2,
            says: Ok("first\n\ndone"),
            wait: 0,
            requests: 1,
        },
        // The model was called again and had not answered.
        CrashCase {
            entries: || [vec![question()], answered("first").into(), vec![heard()]].concat(),
            attempt: 2,
            says: Ok("first\n\ndone\n\nand done"),
            wait: 0,
            requests: 2,
        },
        // It was queued when the turn started and comes before the prompt.
        CrashCase {
            entries: || vec![heard(), question(), open_call()],
            attempt: 2,
            says: Ok("done"),
            wait: 0,
            requests: 1,
        },
        // Everything is answered, only the delivery is missing.
        CrashCase {
            entries: || {
                let parts = [vec![question()], answered("first").into(), vec![heard()]];
                [parts.concat(), answered("second").into()].concat()
            },
            attempt: 2,
            says: Ok("first\n\nsecond"),
            wait: 1,
            requests: 0,
        },
        CrashCase {
            entries: || vec![question(), heard(), open_call()],
            attempt: 4,
            says: Err("will not be retried"),
            wait: 1,
            requests: 0,
        },
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let server = ModelServer::start();
        server.script(Reply::text("done"));
        server.script(Reply::text("and done"));
        let fixture = AgentFixture::asking(&server.url());
        let running = fixture.framework.open_scope().await.unwrap();
        let tape = tape_of(&fixture, "s");
        tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
        let earlier = Entry::message("user", "earlier").with_meta("run_id", "run-0");
        tape.append(earlier.with_meta("inbound_id", "in-9"))
            .await
            .unwrap();
        tape.append_all((case.entries)()).await.unwrap();
        for id in ["in-8", "in-10"] {
            steer(&fixture, id).await;
        }
        match (fixture.turn(delivered("go", case.attempt)).await, case.says) {
            (Ok(result), Ok(says)) => assert_eq!(result.model_output, says, "{number}"),
            (Err(error), Err(says)) => assert!(error.message().contains(says), "{number}: {error}"),
            (outcome, _) => panic!("{number}: {outcome:?}"),
        }
        let entries = entries(&fixture, "s").await;
        let recorded = |id: &str| {
            let of_message = entries
                .iter()
                .filter(|entry| entry.meta.get("inbound_id") == Some(&json!(id)));
            of_message
                .filter(|entry| entry.meta.contains_key("steered") == (id != "in-7"))
                .count()
        };
        assert_eq!(
            (recorded("in-7"), recorded("in-8"), recorded("in-10")),
            (1, 1, 1 - case.wait),
            "{number}"
        );
        let remaining = fixture
            .framework
            .steering_inbox()
            .unwrap()
            .drain(&session())
            .await
            .unwrap();
        let remaining: Vec<_> = remaining
            .iter()
            .map(|inbound| inbound.message.content().into_owned())
            .collect();
        assert_eq!(remaining, vec!["said as in-10"; case.wait], "{number}");
        assert_eq!(server.requests().len(), case.requests, "{number}");
        assert!(!fixture.dir.path().join("workspace/ran-again").exists());
        running.close().await.unwrap();
    }
}

// L4: a steering message ends with its turn, also if that could not be recorded.
#[tokio::test]
async fn a_steered_message_ended_with_its_turn() {
    let server = ModelServer::start();
    server.script(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    tape.append_all(vec![question(), heard(), open_call()])
        .await
        .unwrap();
    let message = delivered_as("in-8", "said as in-8", 2);
    assert_eq!(fixture.turn(message).await.unwrap().model_output, "");
    assert_eq!(server.requests().len(), 0);
    let entries = entries(&fixture, "s").await;
    let is_heard = |entry: &&Entry| entry.meta.get("inbound_id") == Some(&json!("in-8"));
    assert_eq!(entries.iter().filter(is_heard).count(), 1);
    assert!(!fixture.dir.path().join("workspace/ran-again").exists());
    running.close().await.unwrap();
}

// A turn that was answered but not delivered is delivered without another model call.
#[tokio::test]
async fn an_answer_that_was_not_delivered_is_said_again() {
    let server = ModelServer::start();
    server.script(Reply::text("looking").call("a", "tape_info", "{}"));
    server.script(Reply::text("the answer"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let first = fixture.turn(delivered("go", 1)).await.unwrap();
    let before = entries(&fixture, "s").await.len();
    let second = fixture.turn(delivered("go", 2)).await.unwrap();
    assert_eq!(second.model_output, first.model_output);
    assert_eq!(server.requests().len(), 2);
    assert_eq!(
        entries(&fixture, "s").await.len(),
        before + 1,
        "only the event of the delivery"
    );
    running.close().await.unwrap();
}

// Found by the fault injection tests: power loss leaves the start of a batch, here an answer without the end of its
// step.
#[tokio::test]
async fn an_answer_that_lost_its_end_with_the_power_is_said_again() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    let question = Entry::message("user", "go")
        .with_meta("run_id", "run-1")
        .with_meta("inbound_id", "in-7");
    tape.append(question).await.unwrap();
    tape.append(Entry::message("assistant", "the answer").with_meta("run_id", "run-1"))
        .await
        .unwrap();
    let result = fixture.turn(delivered("go", 2)).await.unwrap();
    assert_eq!(result.model_output, "the answer");
    assert_eq!(server.requests().len(), 0);
    running.close().await.unwrap();
}

// Design §5: a command that had started when the process died is not run again, however often it is delivered. A
// finished command returns its output again; a read-only command runs again.
#[tokio::test]
async fn a_command_that_had_begun_is_not_run_again() {
    let fixture = AgentFixture::new();
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    tape.ensure_bootstrap(&SessionInfo::new("s")).await.unwrap();
    let begun = Entry::event(
        "command.start",
        Some(json!({"raw": "touch again", "name": "bash"})),
    );
    tape.append(begun.exclude_from_context().with_meta("inbound_id", "in-7"))
        .await
        .unwrap();
    for attempt in [2, 3, 9] {
        let result = fixture
            .turn(delivered(",touch again", attempt))
            .await
            .unwrap();
        let said = "`,touch again` was running when bub stopped and may have taken effect; it was not run again.";
        assert!(
            result.model_output.starts_with(said),
            "{}",
            result.model_output
        );
    }
    assert!(!fixture.dir.path().join("workspace/again").exists());
    let entries = entries(&fixture, "s").await;
    let ends = events(&entries, "command");
    assert_eq!((ends.len(), &ends[0]["status"]), (1, &json!("interrupted")));
    assert_eq!(
        events(&entries, "turn.redelivered")[0]["outcome"],
        "interrupted: not run again"
    );

    for (line, output) in [
        (",echo once | tee -a ran", Ok("once")),
        (",echo twice >> ran; exit 3", Err("code 3")),
    ] {
        let deliver = |attempt| fixture.turn(delivered_as(line, line, attempt));
        for attempt in [1, 2] {
            match (deliver(attempt).await, output) {
                (Ok(result), Ok(output)) => assert_eq!(result.model_output, output),
                (Err(error), Err(output)) => assert!(error.message().contains(output), "{error}"),
                (outcome, _) => panic!("{line}: {outcome:?}"),
            }
        }
    }
    assert_eq!(
        std::fs::read_to_string(fixture.dir.path().join("workspace/ran")).unwrap(),
        "once\ntwice\n"
    );
    let entries = crate::turn_loop::entries(&fixture, "s").await;
    let ends = events(&entries, "command");
    let ends: Vec<_> = ends.iter().map(|end| &end["status"]).collect();
    assert_eq!(
        ends,
        ["interrupted", "ok", "error"],
        "each is recorded once"
    );
    assert!(entries.iter().all(|entry| entry.kind != EntryKind::Error));
    fixture.turn(delivered(",help", 1)).await.unwrap();
    let entries = crate::turn_loop::entries(&fixture, "s").await;
    let help = entries
        .iter()
        .rfind(|entry| entry.name() == Some("command.start"))
        .unwrap();
    assert_eq!(help.meta.get("inbound_id"), None, "it may be run again");
    running.close().await.unwrap();
}

// Design §5: after three crashed attempts the message is dropped, with a reason on the tape, and the user is
// notified.
#[tokio::test]
async fn a_message_that_ends_the_process_too_often_is_given_up() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let tape = tape_of(&fixture, "s");
    let question = Entry::message("user", "go")
        .with_meta("run_id", "run-1")
        .with_meta("inbound_id", "in-7");
    tape.append(question).await.unwrap();
    let error = fixture.turn(delivered("go", 4)).await.unwrap_err();
    assert!(error.message().contains("will not be retried"), "{error}");
    let entries = entries(&fixture, "s").await;
    let recorded = entries
        .iter()
        .rfind(|entry| entry.kind == bub_tape::EntryKind::Error)
        .unwrap();
    assert!(
        recorded.payload["message"]
            .as_str()
            .unwrap()
            .contains("will not be retried"),
        "{recorded:?}"
    );
    assert!(
        events(&entries, "turn.redelivered")[0]["outcome"]
            .as_str()
            .unwrap()
            .starts_with("dropped")
    );
    assert_eq!(server.requests().len(), 0);
    running.close().await.unwrap();
}
