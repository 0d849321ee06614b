//! Who answers, and what happens when nobody does.

use bub_kernel::{
    Inbound, ModelStream, Prompt, StreamEvent,
    hooks::point::{BuildPrompt, RunModel, RunModelStream, SaveState},
};
use serde_json::json;

use crate::support::{
    Fake, FakeRouter, Manner, Trace, fail, failing_turn, framework, hi, none, observer, some, turn,
};

fn stream_of(deltas: &'static [&'static str]) -> ModelStream {
    ModelStream::from_events(
        deltas
            .iter()
            .map(|delta| StreamEvent::Text((*delta).to_owned())),
    )
}

async fn answer(plugins: Vec<Fake>) -> String {
    turn(&framework(plugins)).await.unwrap().model_output
}

// S-9
#[tokio::test]
async fn run_model_answers_with_text() {
    assert_eq!(
        answer(vec![Fake::new().on_async::<RunModel>(|_| some("text"))]).await,
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
    let plugin =
        Fake::new().on::<RunModelStream>(move |_| Ok(Some(ModelStream::from_events(events()))));
    assert_eq!(answer(vec![plugin]).await, "one two");
}

// S-11
#[tokio::test]
async fn a_text_answer_streams_as_exactly_one_text_event() {
    let trace = Trace::default();
    let framework = framework([Fake::new().on::<RunModel>(|_| some("all of it"))]);
    framework.bind_router(Some(FakeRouter::to(&trace, Manner::Calm)));
    framework
        .process_inbound(Inbound::from(hi()).streaming())
        .await
        .unwrap();
    assert_eq!(
        trace.lines(),
        [r#"event {"kind":"text","data":{"delta":"all of it"}} for room"#]
    );
}

// S-9, S-42: of both hooks together the latest registered plugin is asked first.
#[tokio::test]
async fn the_latest_plugin_answers_whichever_hook_it_implements() {
    let stream = || Fake::new().on::<RunModelStream>(|_| Ok(Some(stream_of(&["st", "ream"]))));
    let text = || Fake::new().on::<RunModel>(|_| some("text"));
    assert_eq!(answer(vec![stream(), text()]).await, "text");
    assert_eq!(answer(vec![text(), stream()]).await, "stream");
}

// S-9: a plugin should have one of them; of one that has both, the stream is asked first.
#[tokio::test]
async fn in_one_plugin_the_stream_comes_first() {
    let both = |answers: bool| {
        Fake::new()
            .on::<RunModel>(|_| some("text"))
            .on::<RunModelStream>(move |_| Ok(answers.then(|| stream_of(&["stream"]))))
    };
    assert_eq!(answer(vec![both(true)]).await, "stream");
    assert_eq!(answer(vec![both(false)]).await, "text");
}

// S-12, S-13: a hook without an opinion falls through to the next plugin. The original failed the turn, or
// committed to the first plugin that had either method.
#[tokio::test]
async fn no_opinion_lets_the_walk_go_on() {
    let below = || Fake::new().on_async::<RunModelStream>(|_| Ok(Some(stream_of(&["below"]))));
    assert_eq!(
        answer(vec![below(), Fake::new().on::<RunModel>(|_| none())]).await,
        "below"
    );
    assert_eq!(
        answer(vec![
            below(),
            Fake::new().on_async::<RunModelStream>(|_| none())
        ])
        .await,
        "below"
    );
    let texts = Fake::new().on::<RunModel>(|_| some("lowest"));
    let plugins = vec![
        texts,
        Fake::new().on::<RunModelStream>(|_| none()),
        Fake::new().on::<RunModel>(|_| none()),
        Fake::new().on::<RunModelStream>(|_| none()),
    ];
    assert_eq!(answer(plugins).await, "lowest");
}

// S-13
#[tokio::test]
async fn when_nobody_answers_a_text_prompt_is_the_output_and_on_error_is_told() {
    for message in [Inbound::from(hi()), Inbound::from(hi()).streaming()] {
        let trace = Trace::default();
        let saved = trace.clone();
        let silent = Fake::new()
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
    let plugin = Fake::new().on::<BuildPrompt>(move |_| some(parts.clone()));
    assert_eq!(answer(vec![plugin]).await, "hi");
}

// S-13: an empty answer is an answer.
#[tokio::test]
async fn an_empty_answer_stays_empty() {
    let trace = Trace::default();
    let plugins = [observer(&trace), Fake::new().on::<RunModel>(|_| some(""))];
    assert_eq!(turn(&framework(plugins)).await.unwrap().model_output, "");
    let empty = Fake::new().on::<RunModelStream>(|_| Ok(Some(ModelStream::from_events([]))));
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
        Fake::new().on::<RunModel>(|_| some("below")),
        Fake::new().on::<RunModel>(|_| fail("quota used up")),
    ];
    assert_eq!(
        failing_turn(&framework(plugins)).await.to_string(),
        "quota used up"
    );
}

// S-16: the stage always runs as a stream.
#[tokio::test]
async fn the_stream_hook_is_used_with_and_without_streaming_output() {
    for message in [Inbound::from(hi()), Inbound::from(hi()).streaming()] {
        let plugin = Fake::new().on::<RunModelStream>(|_| Ok(Some(stream_of(&["a", "b"]))));
        let result = framework([plugin]).process_inbound(message).await.unwrap();
        assert_eq!(result.model_output, "ab");
    }
}
