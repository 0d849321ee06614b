//! Many concurrent turns on one framework.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bub_kernel::{
    Envelope, Framework, Inbound, ModelStream, Prompt, Result, State, StatePatch, StreamEvent,
    Turn, hooks,
    hooks::{Next, point::RunModelStream},
};
use serde_json::{Value, json};
use tokio::task::{JoinSet, yield_now};

const TURNS: usize = 10_000;

/// Copies the session id into the state, so that the test detects a mix-up of turns.
struct SessionStatePlugin;

#[hooks(crate = bub_kernel)]
impl SessionStatePlugin {
    async fn load_state(&self, session_id: &str) -> StatePatch {
        yield_now().await;
        StatePatch::new().with("mark", session_id)
    }
}

struct PromptPlugin;

#[hooks(crate = bub_kernel)]
impl PromptPlugin {
    fn build_prompt(&self, state: &State, message: &Envelope) -> String {
        let mark = state.get_str("mark").unwrap_or_default();
        state.set("count", 1);
        format!("{mark}/{}", message.content())
    }
}

struct AnswerPlugin;

#[hooks(crate = bub_kernel)]
impl AnswerPlugin {
    async fn run_model(&self, prompt: &Prompt, state: &State) -> String {
        yield_now().await;
        let count = state
            .get("count")
            .as_ref()
            .and_then(Value::as_u64)
            .unwrap_or(0);
        state.set("count", count + 1);
        prompt.text()
    }
}

struct WrapPlugin;

#[hooks(crate = bub_kernel)]
impl WrapPlugin {
    async fn run_model_stream(
        &self,
        turn: &Turn,
        next: Next<'_, RunModelStream>,
    ) -> Result<Option<ModelStream>> {
        let session = turn.session_id().clone();
        Ok(next.call().await?.map(|stream| {
            stream.map_events(move |event| match event {
                StreamEvent::Text(delta) => StreamEvent::Text(format!("{session}>{delta}")),
                other => other,
            })
        }))
    }
}

#[derive(Default)]
struct TurnCounts {
    saved: AtomicUsize,
    failed: AtomicUsize,
}

struct CountingPlugin(Arc<TurnCounts>);

#[hooks(crate = bub_kernel)]
impl CountingPlugin {
    // In every seventh session, the plugin panics.
    async fn save_state(&self, session_id: &str) {
        yield_now().await;
        self.0.saved.fetch_add(1, Ordering::Relaxed);
        assert!(!session_id.ends_with("13"), "unlucky");
    }

    fn on_error(&self) {
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_turns_at_once_neither_block_nor_mix() {
    let counting = Arc::new(TurnCounts::default());
    let framework = Framework::builder()
        .plugin("marking", SessionStatePlugin)
        .plugin("prompting", PromptPlugin)
        .plugin("answering", AnswerPlugin)
        .plugin("wrapping", WrapPlugin)
        .plugin("watching", CountingPlugin(Arc::clone(&counting)))
        .build();
    let mut turns = JoinSet::new();
    for number in 0..TURNS {
        let framework = framework.clone();
        turns.spawn(async move {
            let session = format!("s{number}");
            let message =
                Envelope::from_text(format!("m{number}")).with("session_id", session.as_str());
            let mut inbound = Inbound::from(message);
            inbound.stream_output = number % 2 == 1;
            let outcome = framework.process_inbound(inbound).await;
            if session.ends_with("13") {
                return outcome.is_err();
            }
            let result = outcome.expect("a turn failed");
            let state =
                serde_json::to_value(result.state.public_fields()).expect("fields are JSON");
            result.session_id == session
                && result.model_output == format!("{session}>{session}/m{number}")
                && state == json!({"mark": session, "count": 2})
        });
    }
    let all = tokio::time::timeout(Duration::from_mins(2), turns.join_all())
        .await
        .expect("turns are stuck");
    assert_eq!(all.iter().filter(|good| **good).count(), TURNS);
    assert_eq!(counting.saved.load(Ordering::Relaxed), TURNS);
    assert_eq!(counting.failed.load(Ordering::Relaxed), TURNS / 100);
}
