//! The plugin that answers a prompt, and the fallback if no plugin answers.

use bub_kernel::{
    Inbound, ModelStream, Prompt, StreamEvent,
    hooks::point::{BuildPrompt, RunModel, RunModelStream, SaveState},
};
use serde_json::json;

use crate::support::{
    EventResult, FakePlugin, FakeRouter, Trace, fail, failing_turn, framework, hi, none, observer,
    some, turn,
};

fn text_stream(deltas: &'static [&'static str]) -> ModelStream {
    ModelStream::from_events(
        deltas
            .iter()
            .map(|delta| StreamEvent::Text((*delta).to_owned())),
    )
}

async fn answer(plugins: Vec<FakePlugin>) -> String {
    turn(&framework(plugins)).await.unwrap().model_output
}

// S-9
#[tokio::test]
async fn run_model_answers_with_text() {
    assert_eq!(
        answer(vec![
            FakePlugin::new().on_async::<RunModel>(|_| some("text"))
        ])
        .await,
        "text"
    );
}

// S-9, S-10
#[tokio::test]
async fn a_stream_is_drained_and_only_its_text_counts() {
    let events = || {
        [
            StreamEvent::Reasoning("hm".into()),
            StreamEvent::Text("one ".into()),
            StreamEvent::ToolCall(vec![json!({"id": "1"})]),
            StreamEvent::ToolResult(vec![json!("done")]),
            StreamEvent::Text("two".into()),
            StreamEvent::Usage(json!({"total_tokens": 3})),
            StreamEvent::Final(json!({"ok": true, "text": "not counted"})),
            StreamEvent::Other {
                kind: "later".into(),
                data: json!({"delta": "x"}),
            },
        ]
    };
    let plugin = FakePlugin::new()
        .on::<RunModelStream>(move |_| Ok(Some(ModelStream::from_events(events()))));
    assert_eq!(answer(vec![plugin]).await, "one two");
}

// S-11
#[tokio::test]
async fn a_text_answer_streams_as_exactly_one_text_event() {
    let trace = Trace::default();
    let framework = framework([FakePlugin::new().on::<RunModel>(|_| some("all of it"))]);
    framework.bind_router(Some(FakeRouter::to(&trace, EventResult::Succeeds)));
    framework
        .process_inbound(Inbound::from(hi()).with_streaming())
        .await
        .unwrap();
    assert_eq!(
        trace.lines(),
        [r#"event {"kind":"text","data":{"delta":"all of it"}} for room"#]
    );
}

// S-9, S-42: the plugin registered last is called first, for both hooks together.
#[tokio::test]
async fn the_latest_plugin_answers_whichever_hook_it_implements() {
    let stream =
        || FakePlugin::new().on::<RunModelStream>(|_| Ok(Some(text_stream(&["st", "ream"]))));
    let text = || FakePlugin::new().on::<RunModel>(|_| some("text"));
    assert_eq!(answer(vec![stream(), text()]).await, "text");
    assert_eq!(answer(vec![text(), stream()]).await, "stream");
}

// S-9: if a plugin implements both hooks, the stream is called first.
#[tokio::test]
async fn in_one_plugin_the_stream_comes_first() {
    let both = |answers: bool| {
        FakePlugin::new()
            .on::<RunModel>(|_| some("text"))
            .on::<RunModelStream>(move |_| Ok(answers.then(|| text_stream(&["stream"]))))
    };
    assert_eq!(answer(vec![both(true)]).await, "stream");
    assert_eq!(answer(vec![both(false)]).await, "text");
}

// S-12, S-13: if a hook returns `None`, the next plugin is called. The Python version failed the turn, or used the
// first plugin that had either method.
#[tokio::test]
async fn no_opinion_lets_the_walk_go_on() {
    let below =
        || FakePlugin::new().on_async::<RunModelStream>(|_| Ok(Some(text_stream(&["below"]))));
    assert_eq!(
        answer(vec![below(), FakePlugin::new().on::<RunModel>(|_| none())]).await,
        "below"
    );
    assert_eq!(
        answer(vec![
            below(),
            FakePlugin::new().on_async::<RunModelStream>(|_| none())
        ])
        .await,
        "below"
    );
    let texts = FakePlugin::new().on::<RunModel>(|_| some("lowest"));
    let plugins = vec![
        texts,
        FakePlugin::new().on::<RunModelStream>(|_| none()),
        FakePlugin::new().on::<RunModel>(|_| none()),
        FakePlugin::new().on::<RunModelStream>(|_| none()),
    ];
    assert_eq!(answer(plugins).await, "lowest");
}

// S-13
#[tokio::test]
async fn when_nobody_answers_a_text_prompt_is_the_output_and_on_error_is_told() {
    for message in [Inbound::from(hi()), Inbound::from(hi()).with_streaming()] {
        let trace = Trace::default();
        let saved = trace.clone();
        let silent = FakePlugin::new()
            .on::<BuildPrompt>(|_| some("the prompt"))
            .on::<RunModel>(|_| none())
            .on::<RunModelStream>(|_| none())
            .on::<SaveState>(move |call| {
                saved.note(format!(
                    "save {:?} {}",
                    call.args.model_output,
                    call.args.error.is_some()
                ));
                none()
            });
        let result = framework([observer(&trace), silent])
            .process_inbound(message)
            .await
            .unwrap();
        assert_eq!(result.model_output, "the prompt");
        assert_eq!(result.outbounds[0].content(), "the prompt");
        assert_eq!(
            trace.lines(),
            [
                "on_error run_model: [unknown] no model skill returned output",
                "save \"the prompt\" false"
            ]
        );
    }
}

// S-13
#[tokio::test]
async fn when_nobody_answers_a_multimodal_prompt_the_content_is_the_output() {
    let parts = Prompt::Parts(vec![json!({"type": "text", "text": "described"})]);
    let plugin = FakePlugin::new().on::<BuildPrompt>(move |_| some(parts.clone()));
    assert_eq!(answer(vec![plugin]).await, "hi");
}

// S-13: an empty answer is a valid answer.
#[tokio::test]
async fn an_empty_answer_stays_empty() {
    let trace = Trace::default();
    let plugins = [
        observer(&trace),
        FakePlugin::new().on::<RunModel>(|_| some("")),
    ];
    assert_eq!(turn(&framework(plugins)).await.unwrap().model_output, "");
    let empty = FakePlugin::new().on::<RunModelStream>(|_| Ok(Some(ModelStream::from_events([]))));
    assert_eq!(
        turn(&framework([observer(&trace), empty]))
            .await
            .unwrap()
            .model_output,
        ""
    );
    assert!(trace.lines().is_empty());
}

// S-45
#[tokio::test]
async fn a_model_that_fails_is_not_replaced_by_the_one_below() {
    let plugins = [
        FakePlugin::new().on::<RunModel>(|_| some("below")),
        FakePlugin::new().on::<RunModel>(|_| fail("quota used up")),
    ];
    assert_eq!(
        failing_turn(&framework(plugins)).await.to_string(),
        "quota used up"
    );
}

// S-16: the stage always runs as a stream.
#[tokio::test]
async fn the_stream_hook_is_used_with_and_without_streaming_output() {
    for message in [Inbound::from(hi()), Inbound::from(hi()).with_streaming()] {
        let plugin = FakePlugin::new().on::<RunModelStream>(|_| Ok(Some(text_stream(&["a", "b"]))));
        let result = framework([plugin]).process_inbound(message).await.unwrap();
        assert_eq!(result.model_output, "ab");
    }
}
