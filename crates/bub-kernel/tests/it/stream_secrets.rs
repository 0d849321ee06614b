//! Secrets in model streams: no reader sees one, however the stream is split.

use bub_kernel::{
    Framework, Inbound, ModelStream, Result, StreamEvent, hooks,
    hooks::{Next, point::RunModelStream},
};
use proptest::prelude::*;
use serde_json::json;

use crate::support::{EventResult, FakePlugin, FakeRouter, Trace, hi};

const SECRETS: [&str; 3] = ["swordfish", "sword-in-stone", "fish\nand chips"];

/// An event of a stream, as a test case.
#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Reasoning(String),
    Usage,
    ToolCall,
    Final,
}

impl Part {
    fn event(&self) -> StreamEvent {
        match self {
            Self::Text(text) => StreamEvent::Text(text.clone()),
            Self::Reasoning(text) => StreamEvent::Reasoning(text.clone()),
            Self::Usage => StreamEvent::Usage(json!({"total_tokens": 1})),
            Self::ToolCall => StreamEvent::ToolCall(vec![json!({"arguments": SECRETS[0]})]),
            Self::Final => StreamEvent::Final(json!({"ok": true, "text": SECRETS[1]})),
        }
    }
}

/// Splits texts that contain secrets into small pieces, with other events between them.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    let piece = prop_oneof![
        4 => Just(Part::Text(String::new())),
        2 => Just(Part::Reasoning(String::new())),
        1 => Just(Part::Usage),
        1 => Just(Part::ToolCall),
        1 => Just(Part::Final),
    ];
    let texts = prop::collection::vec(
        "(swordfish|sword-in-stone|fish\nand chips|sword|é |\n|x){1,6}",
        2,
    );
    (texts, prop::collection::vec((piece, 1usize..9), 1..30)).prop_map(|(texts, pieces)| {
        let mut rest = [texts[0].chars(), texts[1].chars()];
        let mut split = |which: usize, count| rest[which].by_ref().take(count).collect::<String>();
        let mut parts: Vec<Part> = pieces
            .into_iter()
            .map(|(part, count)| match part {
                Part::Text(_) => Part::Text(split(0, count)),
                Part::Reasoning(_) => Part::Reasoning(split(1, count)),
                other => other,
            })
            .collect();
        parts.push(Part::Text(split(0, 100)));
        parts
    })
}

/// A plugin that reads the stream of the model, as an external plugin does with `next/call`.
struct StreamReader(Trace);

#[hooks(crate = bub_kernel)]
impl StreamReader {
    async fn run_model_stream(&self, next: Next<'_>) -> Result<Option<ModelStream>> {
        let trace = self.0.clone();
        let note = move |event: StreamEvent| {
            trace.note(format!("event {}", event.to_value()));
            event
        };
        Ok(next.call().await?.map(|stream| stream.map_events(note)))
    }
}

/// Returns the events that a channel and a plugin get, and the answer of the turn.
async fn run_stream(parts: &[Part]) -> ([Vec<StreamEvent>; 2], String) {
    let events: Vec<_> = parts.iter().map(Part::event).collect();
    let model = FakePlugin::new()
        .on::<RunModelStream>(move |_| Ok(Some(ModelStream::from_events(events.clone()))));
    let (plugin, channel) = (Trace::default(), Trace::default());
    let framework = Framework::builder()
        .plugin("model", model)
        .plugin("reader", StreamReader(plugin.clone()))
        .build();
    for secret in SECRETS {
        framework.settings().redactor().register(&secret.into());
    }
    framework.bind_router(Some(FakeRouter::to(&channel, EventResult::Succeeds)));
    let inbound = Inbound::from(hi()).with_streaming();
    let result = framework.process_inbound(inbound).await.unwrap();
    let events = [plugin, channel].map(|trace| {
        let lines = trace.lines();
        let events = lines.iter().map(|line| {
            let line = line
                .trim_start_matches("event ")
                .trim_end_matches(" for room");
            StreamEvent::from_value(&serde_json::from_str(line).unwrap())
        });
        events.collect()
    });
    (events, result.model_output)
}

/// Returns the answer, the reasoning, and all other events.
fn collect(events: &[StreamEvent]) -> (String, String, Vec<String>) {
    let (mut answer, mut reasoning, mut others) = (String::new(), String::new(), Vec::new());
    for event in events {
        match event {
            StreamEvent::Text(delta) => answer += delta,
            StreamEvent::Reasoning(delta) => reasoning += delta,
            other => others.push(other.to_value().to_string()),
        }
    }
    (answer, reasoning, others)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_secret_survives_however_a_stream_is_split(parts in parts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (readers, model_output) = runtime.block_on(run_stream(&parts));
        let original: Vec<_> = parts.iter().map(Part::event).collect();
        let (answer, reasoning, others) = collect(&original);
        for events in &readers {
            let (seen_answer, seen_reasoning, seen_others) = collect(events);
            for secret in SECRETS {
                prop_assert!(!seen_answer.contains(secret), "{secret:?} in {seen_answer:?}");
                prop_assert!(!seen_reasoning.contains(secret), "{secret:?} in {seen_reasoning:?}");
                prop_assert!(!seen_others.iter().any(|other| other.contains(secret)), "{seen_others:?}");
            }
            prop_assert_eq!(seen_others.len(), others.len());
            let redactor = bub_settings::Redactor::new();
            for secret in SECRETS {
                redactor.register(&secret.into());
            }
            // An event between two pieces may show the beginning of a secret, but nothing is lost.
            for (seen, whole) in [(&seen_answer, &answer), (&seen_reasoning, &reasoning)] {
                let mut letters = seen.chars();
                let redacted = redactor.redact(whole);
                prop_assert!(redacted.chars().all(|c| letters.any(|other| other == c)), "{redacted:?} {seen:?}");
            }
            prop_assert_eq!(&seen_answer, &model_output);
        }
    }
}

// The text is complete before the event that readers show after it.
#[tokio::test]
async fn held_text_arrives_before_the_tool_call_that_follows_it() {
    let parts = [
        Part::Reasoning("a sword".to_owned()),
        Part::Text("the sword".to_owned()),
        Part::Usage,
        Part::Text("f".to_owned()),
        Part::ToolCall,
        Part::Text("ish".to_owned()),
    ];
    let ([_, events], answer) = run_stream(&parts).await;
    let events: Vec<_> = events.iter().map(StreamEvent::to_value).collect();
    assert_eq!(
        events,
        [
            json!({"kind": "reasoning", "data": {"delta": "a "}}),
            json!({"kind": "reasoning", "data": {"delta": "sword"}}),
            json!({"kind": "text", "data": {"delta": "the "}}),
            json!({"kind": "usage", "data": {"total_tokens": 1}}),
            json!({"kind": "text", "data": {"delta": "swordf"}}),
            json!({"kind": "tool_call", "data": {"tool_calls": [{"arguments": "***"}]}}),
            json!({"kind": "text", "data": {"delta": "***"}}),
        ]
    );
    assert_eq!(answer, "the swordf***");
}
