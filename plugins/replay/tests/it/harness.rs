//! Records tapes with a scripted model, and replays them.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex},
};

use bub::{
    ChannelMessage, Entry, Framework, Inbound, MediaItem, MediaKind, Result, Sender, SessionId,
    ToolContext,
    agent::ModelOverride,
    model::{FinishReason, ModelEvent, ToolCallDelta, Usage},
    settings::FromSettings as _,
    tape::EntryRange,
    testing, tool,
};
use bub_replay::{
    ActiveReplay, Recording, ReplayOptions, ReplayPlugin, ReplaySession, settings::ReplaySettings,
};
use serde_json::{Value, json};

pub(crate) const SESSION: &str = "test:replay";

/// One answer of the model.
#[derive(Clone)]
pub(crate) enum Step {
    Say(String),
    Call(Vec<(&'static str, Value)>),
    /// The stream ends without an answer.
    Fail,
}

/// One message and the answers to it.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) message: String,
    pub(crate) has_image: bool,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn exchange(message: &str, steps: Vec<Step>) -> Exchange {
    Exchange {
        message: message.to_owned(),
        has_image: false,
        steps,
    }
}

pub(crate) fn say(text: &str) -> Step {
    Step::Say(text.to_owned())
}

pub(crate) fn call(tool: &'static str, arguments: Value) -> Step {
    Step::Call(vec![(tool, arguments)])
}

/// Sends a message to the running turn.
#[tool]
async fn nudge(context: &ToolContext, text: String) -> Result<String> {
    let message = ChannelMessage::new(SESSION, "cli", text).context("sender_id", "human");
    let message = Inbound::new(message).with_sender(Sender::terminal());
    let turn = &context.turn;
    turn.framework()
        .steer_message(turn.session_id(), message)
        .await?;
    Ok("nudged".to_owned())
}

fn events(step: Step, number: usize) -> Vec<ModelEvent> {
    let usage = json!({"prompt_tokens": 100 + number, "completion_tokens": 10, "total_tokens": 110 + number});
    let usage = ModelEvent::Usage(Usage::from_json(usage));
    match step {
        Step::Say(text) => vec![
            ModelEvent::Text(text),
            usage,
            ModelEvent::Finish(FinishReason::Stop),
        ],
        Step::Call(calls) => {
            let calls = calls
                .into_iter()
                .enumerate()
                .map(|(index, (tool, arguments))| {
                    ModelEvent::ToolCall(ToolCallDelta {
                        index,
                        id: Some(format!("call_{number}_{index}")),
                        name: Some(tool.replace('.', "_")),
                        arguments: arguments.to_string(),
                    })
                });
            let end = [usage, ModelEvent::Finish(FinishReason::ToolCalls)];
            calls.chain(end).collect()
        }
        Step::Fail => Vec::new(),
    }
}

/// A recorded tape with the requests that the model got.
pub(crate) struct Recorded {
    pub(crate) entries: Vec<Entry>,
    pub(crate) requests: Vec<Vec<Value>>,
    pub(crate) recording: Arc<Recording>,
}

/// Runs a conversation with a scripted model, and returns its tape.
pub(crate) async fn record(directory: &Path, exchanges: &[Exchange]) -> Recorded {
    record_with_limit(directory, exchanges, None).await
}

/// Runs a conversation with a maximum number of steps per turn.
pub(crate) async fn record_with_limit(
    directory: &Path,
    exchanges: &[Exchange],
    max_steps: Option<u64>,
) -> Recorded {
    let steps: VecDeque<Step> = exchanges
        .iter()
        .flat_map(|exchange| exchange.steps.clone())
        .collect();
    let state = Arc::new(Mutex::new((steps, Vec::new())));
    let model = Arc::clone(&state);
    let model = ModelOverride(Box::new(move |_, request| {
        let (steps, requests) = &mut *model.lock().unwrap();
        requests.push(request.messages.to_vec());
        let number = requests.len();
        let step = steps
            .pop_front()
            .unwrap_or_else(|| say("(the script is over)"));
        events(step, number)
    }));
    let test = testing::framework(directory).model(model);
    let framework = match max_steps {
        Some(steps) => test.setting("max_steps", steps),
        None => test,
    }
    .builder()
    .unwrap();
    let framework = framework.tool(nudge()).build();
    let (entries, recording) = framework
        .run_scoped(async {
            for exchange in exchanges {
                let message = ChannelMessage::new(SESSION, "cli", exchange.message.clone())
                    .chat_id("local")
                    .context("sender_id", "human");
                let message = if exchange.has_image {
                    message.media(MediaItem::from_bytes(MediaKind::Image, "image/png", PIXEL))
                } else {
                    message
                };
                let inbound = Inbound::new(message).with_sender(Sender::terminal());
                let _ = framework.process_turn(inbound).await;
            }
            let tape = framework.session_tape(&SessionId::from(SESSION))?.unwrap();
            let entries = tape.entries(EntryRange::ALL).await.unwrap();
            let recording = Recording::new(entries.clone(), &*tape.store().blobs()).await;
            Ok((entries, recording))
        })
        .await
        .unwrap();
    let requests = std::mem::take(&mut state.lock().unwrap().1);
    Recorded {
        entries,
        requests,
        recording: Arc::new(recording),
    }
}

/// The smallest PNG image.
const PIXEL: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\0\0\0\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\0\x05\0\x01\xff\x89\x99=\x1d\0\0\0\0IEND\xaeB`\x82";

/// A finished replay.
pub(crate) struct Replayed {
    pub(crate) session: Arc<ReplaySession>,
    pub(crate) recording: Recording,
}

/// Replays a recording in a framework with the tools of the recording.
pub(crate) async fn replay(
    directory: &Path,
    recording: &Arc<Recording>,
    options: ReplayOptions,
) -> Replayed {
    let session = ReplaySession::new(SessionId::from(SESSION), Arc::clone(recording), options);
    let session = Arc::new(session);
    let active = ActiveReplay::default();
    active.start(Arc::clone(&session));
    let framework = replay_framework(directory, active);
    let recording = framework
        .run_scoped(async {
            session.run(&framework).await?;
            session.replayed(&framework).await
        })
        .await
        .unwrap();
    Replayed { session, recording }
}

pub(crate) fn replay_framework(directory: &Path, active: ActiveReplay) -> Framework {
    let test = testing::framework(directory)
        .settings(ReplaySettings::section())
        .setting("replay.session", true);
    let builder = test.builder().unwrap();
    let make = move |context: &bub::PluginContext<'_>| {
        ReplayPlugin::with_replay(ReplaySettings::from_settings(context.settings), active)
    };
    builder
        .plugin_with(ReplayPlugin::NAME, make)
        .tool(nudge())
        .build()
}

/// Returns an entry without what a replay cannot repeat: ids and times.
pub(crate) fn comparable(entry: &Entry) -> Value {
    let mut payload = Value::Object(entry.payload.clone());
    remove_volatile(&mut payload);
    let mut meta = Value::Object(entry.meta.clone());
    for key in ["run_id", "provenance"] {
        meta.as_object_mut().unwrap().remove(key);
    }
    json!({"kind": entry.kind.as_str(), "payload": payload, "meta": meta})
}

fn remove_volatile(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for key in [
                "elapsed_ms",
                "view",
                "date",
                "carry",
                "source",
                "done",
                "in_progress",
            ] {
                fields.remove(key);
            }
            fields.values_mut().for_each(remove_volatile);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_volatile),
        _ => {}
    }
}
