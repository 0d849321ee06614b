//! Model streams: errors, and how channels receive events.

use std::sync::Arc;

use bub_kernel::{
    Channel, ChannelRouter, Envelope, Error, ErrorKind, Inbound, MessageId, ModelStream, Result,
    SessionId, StreamEvent, Turn, async_trait, hooks::point::RunModelStream,
};
use futures_util::StreamExt;
use serde_json::json;

use crate::support::{
    EventResult, FakePlugin, FakeRouter, LogCapture, Trace, framework, hi, observer,
};

fn text(delta: &str) -> StreamEvent {
    StreamEvent::Text(delta.to_owned())
}

fn stream_plugin(events: Vec<StreamEvent>) -> FakePlugin {
    FakePlugin::new()
        .on::<RunModelStream>(move |_| Ok(Some(ModelStream::from_events(events.clone()))))
}

// S-14
#[tokio::test]
async fn error_events_are_reported_and_the_stream_goes_on() {
    let trace = Trace::default();
    let events = vec![
        text("a"),
        StreamEvent::Error(Error::new(ErrorKind::Temporary, "slow down")),
        text("b"),
        StreamEvent::Error(Error::unknown("again")),
    ];
    let framework = framework([observer(&trace), stream_plugin(events)]);
    let result = framework.process_inbound(hi()).await.unwrap();
    assert_eq!(result.model_output, "ab");
    assert_eq!(
        trace.lines(),
        [
            "on_error run_model: [temporary] slow down",
            "on_error run_model: [unknown] again"
        ]
    );
}

// S-14, W-55
#[tokio::test]
async fn odd_error_events_do_not_end_the_turn() {
    let cases = [
        (
            json!({"kind": "rate_limit", "message": "busy"}),
            "[unknown] busy",
        ),
        (
            json!({"kind": "tool", "message": "no", "extra": 1}),
            "[tool] no",
        ),
        (json!({"message": "no kind"}), "[unknown] no kind"),
        (json!("only text"), "[unknown] only text"),
        (
            json!({"kind": "provider"}),
            r#"[provider] {"kind":"provider"}"#,
        ),
    ];
    for (data, expected) in cases {
        let trace = Trace::default();
        let event = StreamEvent::from_value(&json!({"kind": "error", "data": data}));
        let framework = framework([observer(&trace), stream_plugin(vec![event, text("fine")])]);
        let result = framework.process_inbound(hi()).await.unwrap();
        assert_eq!(result.model_output, "fine");
        assert_eq!(trace.lines(), [format!("on_error run_model: {expected}")]);
    }
}

// S-14: an error that ends the stream fails the turn.
#[tokio::test]
async fn a_stream_that_ends_with_an_error_fails_the_turn() {
    let plugin = FakePlugin::new().on::<RunModelStream>(|_| {
        let items = [
            Ok(text("partial")),
            Err(Error::new(ErrorKind::Provider, "truncated")),
        ];
        Ok(Some(ModelStream::new(futures_util::stream::iter(items))))
    });
    let error = framework([plugin]).process_inbound(hi()).await.unwrap_err();
    assert_eq!(error.to_string(), "[provider] truncated");
}

// S-15, S-54: the channel receives each event in order, with the inbound message, before the turn ends.
#[tokio::test]
async fn a_streaming_turn_shows_every_event_to_the_channel() {
    let trace = Trace::default();
    let framework = framework([stream_plugin(vec![
        text("a"),
        StreamEvent::Usage(json!({"n": 1})),
        text("b"),
    ])]);
    framework.bind_router(Some(FakeRouter::to(&trace, EventResult::Succeeds)));
    let result = framework
        .process_inbound(Inbound::from(hi()).with_streaming())
        .await
        .unwrap();
    assert_eq!(result.model_output, "ab");
    assert_eq!(
        trace.lines(),
        [
            r#"event {"kind":"text","data":{"delta":"a"}} for room"#,
            r#"event {"kind":"usage","data":{"n":1}} for room"#,
            r#"event {"kind":"text","data":{"delta":"b"}} for room"#,
        ]
    );
}

// S-15
#[tokio::test]
async fn channels_see_nothing_when_output_is_not_streamed() {
    let trace = Trace::default();
    let framework = framework([stream_plugin(vec![text("a")])]);
    framework.bind_router(Some(FakeRouter::to(&trace, EventResult::Succeeds)));
    framework.process_inbound(hi()).await.unwrap();
    assert!(trace.lines().is_empty());
}

// S-15, S-54
#[tokio::test]
async fn a_message_of_an_unknown_channel_streams_to_nobody() {
    let trace = Trace::default();
    let framework = framework([stream_plugin(vec![text("a")])]);
    framework.bind_router(Some(FakeRouter::to(&trace, EventResult::Succeeds)));
    for message in [
        Envelope::from_text("hi"),
        Envelope::from_text("hi").with("channel", "mail"),
    ] {
        let result = framework
            .process_inbound(Inbound::from(message).with_streaming())
            .await
            .unwrap();
        assert_eq!(result.model_output, "a");
    }
    assert!(trace.lines().is_empty());
}

// S-15
#[tokio::test]
async fn events_go_to_the_output_channel() {
    let trace = Trace::default();
    let framework = framework([stream_plugin(vec![text("a")])]);
    framework.bind_router(Some(FakeRouter::to(&trace, EventResult::Succeeds)));
    let message = Envelope::from_text("hi")
        .with("channel", "mail")
        .with("output_channel", "cli");
    framework
        .process_inbound(Inbound::from(message).with_streaming())
        .await
        .unwrap();
    assert_eq!(trace.lines().len(), 1);
}

// S-54: `on_event` is optional, and a failure in it does not affect the turn.
#[tokio::test]
async fn a_channel_that_fails_on_an_event_is_logged_and_the_turn_goes_on() {
    for (event_result, reason) in [
        (EventResult::Fails, "[unknown] screen is gone"),
        (
            EventResult::Panics,
            "[unknown] plugin code panicked: screen fell down; see the log",
        ),
    ] {
        let (trace, log) = (Trace::default(), LogCapture::start());
        let framework = framework([stream_plugin(vec![text("a"), text("b")])]);
        framework.bind_router(Some(FakeRouter::to(&trace, event_result)));
        let result = framework
            .process_inbound(Inbound::from(hi()).with_streaming())
            .await
            .unwrap();
        assert_eq!(result.model_output, "ab");
        let line = format!("WARN channel.on_event_failed channel=cli error={reason}");
        assert_eq!(log.lines(), [line.clone(), line]);
    }
}

struct UppercaseRouter;

#[async_trait]
impl ChannelRouter for UppercaseRouter {
    fn channel(&self, _name: &str) -> Option<Arc<dyn Channel>> {
        None
    }

    fn wrap_stream(&self, turn: &Turn, stream: ModelStream) -> ModelStream {
        let prefix = turn.message().content().into_owned();
        stream.map_events(move |event| match event {
            StreamEvent::Text(delta) => {
                StreamEvent::Text(format!("{prefix}:{}", delta.to_uppercase()))
            }
            other => other,
        })
    }

    async fn quit_session(&self, _: &SessionId, _: Option<&MessageId>) -> Result<()> {
        Ok(())
    }
}

// S-15: a router can wrap the stream instead, and the turn reads the wrapped stream.
#[tokio::test]
async fn a_router_may_wrap_the_stream() {
    let framework = framework([stream_plugin(vec![text("a"), text("b")])]);
    framework.bind_router(Some(Arc::new(UppercaseRouter)));
    let streamed = framework
        .process_inbound(Inbound::from(hi()).with_streaming())
        .await
        .unwrap();
    assert_eq!(streamed.model_output, "hi:Ahi:B");
    framework.bind_router(None);
    let unbound = framework
        .process_inbound(Inbound::from(hi()).with_streaming())
        .await
        .unwrap();
    assert_eq!(unbound.model_output, "ab");
}

// H-45
#[tokio::test]
async fn a_stream_remembers_its_last_usage_and_error() {
    let items = vec![
        Ok(StreamEvent::Usage(json!({"n": 1}))),
        Ok(StreamEvent::Error(Error::unknown("first"))),
        Ok(StreamEvent::Usage(json!({"n": 2}))),
        Err(Error::unknown("last")),
    ];
    let mut stream = ModelStream::new(futures_util::stream::iter(items));
    assert!(stream.usage().is_none() && stream.error().is_none());
    while stream.next().await.is_some() {}
    assert_eq!(stream.usage(), Some(&json!({"n": 2})));
    assert_eq!(stream.error().unwrap().message(), "last");
}

#[tokio::test]
async fn a_finished_text_stream_stays_finished() {
    let mut stream = ModelStream::from_text("once");
    assert!(matches!(stream.next().await, Some(Ok(StreamEvent::Text(delta))) if delta == "once"));
    assert!(stream.next().await.is_none());
    assert!(stream.next().await.is_none());
}
