//! Rendering the output as messages.

use bub_kernel::{
    Envelope,
    hooks::point::{RenderOutbound, RunModel},
};
use serde_json::{Value, json};

use crate::support::{FakePlugin, fail, failing_turn, framework, hi, none, some, turn};

fn render_plugin(contents: &'static [&'static str]) -> FakePlugin {
    FakePlugin::new().on::<RenderOutbound>(move |_| {
        Ok(Some(
            contents
                .iter()
                .map(|text| Envelope::from_text(*text))
                .collect(),
        ))
    })
}

async fn render(plugins: Vec<FakePlugin>, inbound: Envelope) -> Vec<Value> {
    let result = framework(plugins).process_inbound(inbound).await.unwrap();
    result
        .outbounds
        .iter()
        .map(|outbound| serde_json::to_value(outbound).unwrap())
        .collect()
}

// S-20
#[tokio::test]
async fn batches_are_flattened_in_the_order_of_the_hooks() {
    let plugins = vec![
        render_plugin(&["low 1", "low 2"]),
        render_plugin(&[]),
        FakePlugin::new().on_async::<RenderOutbound>(|_| none()),
        render_plugin(&["high"]),
    ];
    let contents: Vec<_> = render(plugins, hi())
        .await
        .iter()
        .map(|outbound| outbound["content"].clone())
        .collect();
    assert_eq!(contents, ["high", "low 1", "low 2"]);
}

// S-20: the results of external plugins are converted by the same rules.
#[test]
fn a_batch_is_nothing_one_message_or_a_list() {
    let contents = |value| {
        let batch = Envelope::from_rendered(value);
        batch
            .iter()
            .map(|envelope| envelope.content().into_owned())
            .collect::<Vec<_>>()
    };
    assert!(contents(json!(null)).is_empty());
    assert!(contents(json!([])).is_empty());
    assert_eq!(contents(json!({"content": "one"})), ["one"]);
    assert_eq!(contents(json!("text")), ["text"]);
    assert_eq!(contents(json!([{"content": "a"}, "b", 3])), ["a", "b", "3"]);
}

// S-21
#[tokio::test]
async fn when_nothing_was_rendered_one_plain_reply_stands_in() {
    let model = || FakePlugin::new().on::<RunModel>(|_| some("out"));
    let cases = [
        (
            hi(),
            json!({"content": "out", "session_id": "cli:room", "channel": "cli", "chat_id": "room"}),
        ),
        (
            Envelope::from_text("x"),
            json!({"content": "out", "session_id": "default:default"}),
        ),
        (
            Envelope::from_text("x")
                .with("channel", Value::Null)
                .with("chat_id", 7),
            json!({"content": "out", "session_id": "default:7", "chat_id": 7}),
        ),
    ];
    for (inbound, expected) in cases {
        let expected = [expected];
        assert_eq!(render(vec![model()], inbound.clone()).await, expected);
        assert_eq!(
            render(vec![model(), render_plugin(&[])], inbound).await,
            expected
        );
    }
}

// S-45
#[tokio::test]
async fn a_renderer_that_fails_fails_the_turn() {
    let plugins = [
        render_plugin(&["fine"]),
        FakePlugin::new().on::<RenderOutbound>(|_| fail("bad template")),
    ];
    let error = failing_turn(&framework(plugins)).await;
    assert_eq!(error.to_string(), "bad template");
    assert_eq!(turn(&framework([])).await.unwrap().outbounds.len(), 1);
}
