//! The builtin implementation of each stage.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
};

use bub_kernel::{
    ChannelMessage, Envelope, Error, ErrorKind, Inbound, Lifespan, LifespanScope, MessageKind,
    Prompt, Result, State, StatePatch, Turn, async_trait, hooks,
    hooks::{args, point},
};
use serde_json::json;

use crate::harness::{AgentFixture, OutboxPlugin, owned};

// S-27: the builtin plugin is registered first, so a plugin registered later replaces any stage.
#[tokio::test]
async fn a_later_plugin_replaces_any_default() {
    struct OverridePlugin;

    #[hooks(crate = bub_kernel)]
    impl OverridePlugin {
        fn resolve_session(&self) -> &'static str {
            "mine"
        }

        fn build_prompt(&self) -> &'static str {
            "my prompt"
        }

        fn run_model(&self, prompt: &Prompt) -> String {
            format!("answer to {}", prompt.text())
        }
    }

    let fixture = AgentFixture::with_plugin("override", OverridePlugin);
    assert_eq!(&*fixture.framework.plugins()[0].name, "builtin");
    let result = fixture
        .turn(Envelope::from_text("hi").with("session_id", "theirs"))
        .await
        .unwrap();
    assert_eq!(result.session_id, "mine");
    assert_eq!(result.model_output, "answer to my prompt");
}

// S-28: a session id that is not blank is used unchanged and not trimmed.
#[tokio::test]
async fn the_session_is_that_of_the_envelope_or_of_the_chat() {
    let fixture = AgentFixture::new();
    let cases = [
        (
            json!({"session_id": " s 1 ", "channel": "c", "chat_id": "7"}),
            " s 1 ",
        ),
        (
            json!({"session_id": "  ", "channel": "c", "chat_id": "7"}),
            "c:7",
        ),
        (json!({"session_id": "", "channel": "c"}), "c:default"),
        (json!({"session_id": null, "chat_id": 7}), "default:7"),
        (json!({}), "default:default"),
    ];
    for (fields, expected) in cases {
        let mut inbound = Inbound::new(Envelope::from_value(fields.clone()));
        fixture
            .framework
            .resolve_session(&mut inbound)
            .await
            .unwrap();
        assert_eq!(inbound.session_id().unwrap(), expected, "{fields}");
        assert_eq!(inbound.message.session_id().unwrap(), expected, "{fields}");
    }
}

// S-29
#[tokio::test]
async fn the_state_is_seeded_with_session_agent_and_context() {
    let fixture = AgentFixture::new();
    let message = ChannelMessage::new("s", "lab", "hi")
        .chat_id("7")
        .context("model", "acme:large")
        .context("thread_id", "t-1");
    let turn = fixture.loaded(message).await;
    let state = turn.state();
    assert_eq!(state.get_str("session_id").unwrap(), "s");
    assert_eq!(
        state.get_str("context").unwrap(),
        "model=acme:large|thread_id=t-1|channel=$lab|chat_id=7"
    );
    assert_eq!(state.get_str("model").unwrap(), "acme:large");
    assert_eq!(state.get_str("_runtime_thread_id").unwrap(), "t-1");
    assert_eq!(state.get_str("_runtime_agent").unwrap(), "builtin");

    let bare = fixture.loaded(Envelope::from_text("hi")).await;
    assert_eq!(bare.state().get("context"), None);
    assert_eq!(bare.state().get("model"), None);
}

#[derive(Clone, Default)]
struct LifespanTrace(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl LifespanScope for LifespanTrace {
    async fn enter(&mut self) -> Result<()> {
        self.0.lock().unwrap().push("enter".into());
        Ok(())
    }

    async fn exit(&mut self, error: Option<&Error>) -> Result<()> {
        let note = error.map_or("exit".to_owned(), |error| format!("exit with {error}"));
        self.0.lock().unwrap().push(note);
        Ok(())
    }
}

fn message_with(trace: &LifespanTrace) -> Inbound {
    let message = ChannelMessage::new("s", "lab", "hi");
    Inbound::from(message).with_lifespan(Lifespan::new(trace.clone()))
}

// S-29, S-32: the lifespan is entered in `load_state` and left in `save_state`, once each.
#[tokio::test]
async fn the_lifespan_spans_the_turn() {
    let trace = LifespanTrace::default();
    AgentFixture::new()
        .turn(message_with(&trace))
        .await
        .unwrap();
    assert_eq!(*trace.0.lock().unwrap(), ["enter", "exit"]);
}

// S-19, S-32: the lifespan gets the error of the turn.
#[tokio::test]
async fn the_lifespan_learns_of_the_failure() {
    struct FailingPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingPlugin {
        fn run_model(&self) -> Result<String> {
            Err(Error::config("no key"))
        }
    }

    let trace = LifespanTrace::default();
    AgentFixture::with_plugin("failing", FailingPlugin)
        .turn(message_with(&trace))
        .await
        .unwrap_err();
    assert_eq!(
        *trace.0.lock().unwrap(),
        ["enter", "exit with [config] no key"]
    );
}

// S-33
#[tokio::test]
async fn the_reply_keeps_the_routing_of_the_message() {
    let message = ChannelMessage::new("s", "lab", "hi")
        .chat_id("7")
        .output_channel("log")
        .kind("normal");
    let result = AgentFixture::echoing().turn(message).await.unwrap();
    let [reply] = result.outbounds.as_slice() else {
        panic!("{:?}", result.outbounds)
    };
    assert_eq!(reply.content(), result.model_output);
    assert_eq!(reply.session_id().unwrap(), "s");
    assert_eq!(reply.channel().unwrap(), "lab");
    assert_eq!(reply.chat_id().unwrap(), "7");
    assert_eq!(reply.output_channel().unwrap(), "log");
    assert_eq!(reply.kind(), MessageKind::Normal);
}

// S-34
#[tokio::test]
async fn dispatch_goes_to_the_bound_router() {
    let fixture = AgentFixture::echoing();
    let message = Envelope::from_text("out");
    let sent = || async {
        let args = args::DispatchOutbound {
            message: &message,
            turn: None,
        };
        fixture
            .framework
            .hooks()
            .call_all::<point::DispatchOutbound>(args)
            .await
            .unwrap()
    };
    assert_eq!(sent().await, [Some(false)]);
    let outbox = Arc::new(OutboxPlugin::default());
    fixture.framework.bind_router(Some(outbox.clone()));
    assert_eq!(sent().await, [Some(true)]);
    assert_eq!(outbox.0.lock().unwrap()[0].content(), "out");
}

// S-24: an error is reported in the chat of the message, without secrets. Only an error that ends the turn is the
// error of the turn.
#[tokio::test]
async fn a_failure_is_reported_on_the_inbound_channel() {
    struct FailingPlugin;

    #[hooks(crate = bub_kernel)]
    impl FailingPlugin {
        fn build_prompt(&self) -> Result<Prompt> {
            Err(Error::config("key correct-horse-battery is refused"))
        }
    }

    let fixture = AgentFixture::with_plugin("failing", FailingPlugin);
    let outbox = Arc::new(OutboxPlugin::default());
    fixture.framework.bind_router(Some(outbox.clone()));
    let message = || owned(ChannelMessage::new("s", "lab", "hi").chat_id("7"));
    let (failed, outcome) = fixture.framework.process_turn(message()).await;
    outcome.unwrap_err();
    let running = Turn::detached(&fixture.framework, message(), State::new());
    let half = Error::unknown("half");
    notify(&running, "run_model", &half).await;
    let sent = outbox.0.lock().unwrap();
    let [notice, on_the_way] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert!(failed.failure().is_some() && running.failure().is_none());
    assert_eq!(on_the_way.kind(), MessageKind::Error);
    assert_eq!(
        notice.content(),
        "An error occurred at stage 'turn': [config] key *** is refused"
    );
    assert_eq!(
        (notice.kind(), notice.chat_id().unwrap().as_ref()),
        (MessageKind::Error, "7")
    );
}

/// Reports an error that occurred in a turn.
async fn notify(turn: &Turn, stage: &str, error: &Error) {
    let args = args::OnError {
        stage,
        error,
        message: Some(turn.message()),
        turn: Some(turn),
    };
    turn.framework().hooks().notify_error(args).await;
}

// L1: the sender is notified also if the error cannot be recorded or the tape cannot be opened. Only owners see local
// paths.
#[tokio::test]
async fn a_failure_is_reported_when_the_tape_cannot_be_written() {
    /// Breaks the tape store during a turn.
    #[derive(Clone, Default)]
    struct StoreBreaker(Arc<OnceLock<PathBuf>>);

    #[hooks(crate = bub_kernel)]
    impl StoreBreaker {
        fn resolve_session(&self) -> String {
            "s".to_owned()
        }

        fn load_state(&self) -> Result<StatePatch> {
            let tapes = self.0.get().unwrap();
            std::fs::remove_dir_all(tapes).unwrap();
            std::fs::write(tapes, "in the way").unwrap();
            Err(Error::unknown("cannot read /srv/tapes/x: odd"))
        }
    }

    let breaking = StoreBreaker::default();
    let fixture = AgentFixture::with_plugin("breaking", breaking.clone());
    let tapes = fixture.dir.path().join("home/tapes");
    breaking.0.set(tapes.clone()).unwrap();
    let running = fixture.framework.open_scope().await.unwrap();
    let outbox = Arc::new(OutboxPlugin::default());
    fixture.framework.bind_router(Some(outbox.clone()));
    let message = || ChannelMessage::new("s", "lab", "hi").chat_id("7");
    let assert_notice = |text: &str| {
        let sent = std::mem::take(&mut *outbox.0.lock().unwrap());
        let [notice] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        assert!(notice.content().contains(text), "{notice:?}");
    };
    for (inbound, expected) in [
        (
            message().into(),
            "a file or service that bub needs is unavailable; ask the owner",
        ),
        (owned(message()), "/srv/tapes/x"),
    ] {
        let _ = std::fs::remove_file(&tapes);
        fixture.turn(inbound).await.unwrap_err();
        assert_notice(expected);
        assert!(tapes.is_file());
    }
    // Now the tape cannot be opened.
    fixture.turn(message()).await.unwrap_err();
    assert_notice(
        "bub is not configured correctly; ask the owner of this bot, who sees the details in the log",
    );
    fixture.turn(owned(message())).await.unwrap_err();
    assert_notice(tapes.to_str().unwrap());
    running.close().await.unwrap();
}

// L1: only owners see addresses and settings; other users see the kind of the error.
#[tokio::test]
async fn an_error_tells_a_guest_neither_addresses_nor_settings() {
    let fixture = AgentFixture::new();
    let outbox = Arc::new(OutboxPlugin::default());
    fixture.framework.bind_router(Some(outbox.clone()));
    let cases = [
        (
            ErrorKind::Temporary,
            "nothing answers at http://127.0.0.1:4015/v1",
            "is unavailable; ask the owner",
        ),
        (
            ErrorKind::Temporary,
            "no connection to inner-host in time",
            "is unavailable; ask the owner",
        ),
        (
            ErrorKind::Provider,
            "x.example refused the key from environment variable BUB_API_KEY",
            "the model refused",
        ),
        (
            ErrorKind::Config,
            "set `api_key.openai`",
            "not configured correctly; ask the owner",
        ),
        (
            ErrorKind::Tool,
            "(inner-host:8080) is gone",
            "a file or service that bub needs",
        ),
        (
            ErrorKind::Unknown,
            "see BUB_HOME",
            "a file or service that bub needs",
        ),
        (
            ErrorKind::Unknown,
            "see <https://inner-host>",
            "a file or service that bub needs",
        ),
        (
            ErrorKind::Unknown,
            "max_steps_reached=3; the turn stopped after 3 steps: send `continue` to go on, or raise `max_steps`",
            "max_steps_reached=3; the turn stopped after 3 steps: send `continue` to go on, or raise `max_steps`",
        ),
    ];
    for (kind, text, expected) in cases {
        let error = Error::new(kind, text);
        let message = || ChannelMessage::new("s", "lab", "hi").chat_id("7");
        for inbound in [message().into(), owned(message())] {
            let turn = Turn::detached(&fixture.framework, inbound, State::new());
            notify(&turn, "x", &error).await;
        }
        let sent = std::mem::take(&mut *outbox.0.lock().unwrap());
        let [guest, owner] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        let is_whole = guest.content().contains(text);
        assert!(
            guest.content().contains(expected) && is_whole == (text == expected),
            "{guest:?}"
        );
        assert!(owner.content().contains(text), "{owner:?}");
    }
}

// S-24: defaults of the error envelope; no envelope without a message.
#[tokio::test]
async fn an_error_without_an_address_goes_to_the_default_one() {
    let fixture = AgentFixture::new();
    let outbox = Arc::new(OutboxPlugin::default());
    fixture.framework.bind_router(Some(outbox.clone()));
    let error = Error::unknown("odd");
    let report = async |message: Option<&Envelope>| {
        let args = args::OnError {
            stage: "x",
            error: &error,
            message,
            turn: None,
        };
        fixture.framework.hooks().notify_error(args).await;
    };
    report(None).await;
    assert!(outbox.0.lock().unwrap().is_empty());
    report(Some(&Envelope::new())).await;
    let sent = outbox.0.lock().unwrap();
    assert_eq!(sent[0].session_id().unwrap(), "unknown");
    assert_eq!(sent[0].channel().unwrap(), "default");
    assert_eq!(sent[0].chat_id().unwrap(), "default");
}

// S-35, P-38
#[tokio::test]
async fn the_system_prompt_ends_with_the_workspace_notes() {
    let fixture = AgentFixture::new();
    let turn = fixture.loaded(Envelope::from_text("hi")).await;
    let prompt = Prompt::from("hi");
    let plain = fixture.framework.system_prompt(&prompt, &turn).unwrap();
    assert!(plain.contains("<general_instruct>"));
    std::fs::write(
        fixture.dir.path().join("workspace/AGENTS.md"),
        "\n Use tabs. \n",
    )
    .unwrap();
    let with_notes = fixture.framework.system_prompt(&prompt, &turn).unwrap();
    assert_eq!(
        with_notes,
        format!("{plain}\n\n<workspace_instruction>\nUse tabs.\n</workspace_instruction>")
    );
    std::fs::write(fixture.dir.path().join("workspace/AGENTS.md"), b"caf\xe9").unwrap();
    assert!(
        fixture
            .framework
            .system_prompt(&prompt, &turn)
            .unwrap()
            .ends_with("caf\u{fffd}\n</workspace_instruction>")
    );
}

// S-31: without a model, the answer is a guide that explains what to do.
#[tokio::test]
async fn without_a_model_the_guide_answers_honestly() {
    let result = AgentFixture::new()
        .turn(Envelope::from_text("hi"))
        .await
        .unwrap();
    assert!(
        result.model_output.starts_with("No model is configured"),
        "{}",
        result.model_output
    );
}

// W-58: overrides and state belong to the turn; another turn does not change the caller's state.
#[tokio::test]
async fn turns_do_not_share_state() {
    let fixture = AgentFixture::echoing();
    let first = fixture
        .turn(ChannelMessage::new("a", "lab", "hi").context("model", "acme:large"))
        .await
        .unwrap();
    let second = fixture
        .turn(ChannelMessage::new("b", "lab", "hi"))
        .await
        .unwrap();
    let model = |state: &State| state.get_str("model");
    assert_eq!(
        (model(&first.state).as_deref(), model(&second.state)),
        (Some("acme:large"), None)
    );
}
