//! A client, endpoints and requests for tests, and a capture of all log records.

use std::fmt;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use bub_model::{
    Accumulator, Backoff, BaseUrl, CallOptions, ChatRequest, Completion, Endpoint, HttpOptions,
    ModelClient, ModelError, ModelEvent, ModelEventStream, ModelId, WireFormat,
};
use bub_settings::{Redactor, Secret};
use bub_testkit::model::ModelServer;
use futures_util::StreamExt;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The key of every endpoint. No error, log record or debug output of any test may contain it.
pub(crate) const KEY: &str = "sk-test-5f2c9e7ab1d04c3388";

/// Timeout for streams. It is long enough for a busy machine and elapses only if a stream hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn client() -> ModelClient {
    capture_logs();
    ModelClient::new(HttpOptions::default(), Redactor::new())
}

/// Returns options for retries without delay.
pub(crate) fn quick() -> CallOptions {
    let backoff = Backoff {
        initial: Duration::ZERO,
        ..Backoff::default()
    };
    CallOptions {
        backoff,
        ..CallOptions::default()
    }
}

pub(crate) fn endpoint(server: &ModelServer, wire: WireFormat) -> Endpoint {
    named_endpoint(server, wire, "test:model")
}

pub(crate) fn named_endpoint(server: &ModelServer, wire: WireFormat, id: &str) -> Endpoint {
    let base = BaseUrl::parse(&format!("{}/v1", server.url())).unwrap();
    let id: ModelId = id.parse().unwrap();
    Endpoint::new(id, wire, base).with_key(&Secret::from(KEY))
}

pub(crate) fn request(stream: bool) -> ChatRequest {
    let messages = Arc::new(vec![json!({"role": "user", "content": "hi"})]);
    ChatRequest {
        model: "model".into(),
        messages,
        stream,
        ..ChatRequest::default()
    }
}

/// Collects a stream, with [`TEST_TIMEOUT`] as timeout.
pub(crate) async fn collect(stream: ModelEventStream) -> (Vec<ModelEvent>, Option<ModelError>) {
    tokio::time::timeout(TEST_TIMEOUT, drain(stream))
        .await
        .expect("the stream hangs")
}

/// Collects a stream without a timeout.
pub(crate) async fn drain(mut stream: ModelEventStream) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "an event follows an error");
                assert_no_key(&format!("{error} {error:?}"));
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

/// Returns the answer in the events. Fails if it is incomplete.
pub(crate) fn completion(events: Vec<ModelEvent>) -> Result<Completion, ModelError> {
    let mut answer = Accumulator::new();
    for event in events {
        answer.push(event);
    }
    answer.finish()
}

pub(crate) fn text(events: &[ModelEvent]) -> String {
    let texts = events.iter().filter_map(|event| {
        if let ModelEvent::Text(text) = event {
            Some(text.as_str())
        } else {
            None
        }
    });
    texts.collect()
}

/// Panics if the text contains the key.
pub(crate) fn assert_no_key(text: &str) {
    assert!(!text.contains(KEY), "text with the key: {text}");
}

/// Returns all log records of bub and its libraries, at all levels.
pub(crate) fn logged() -> Vec<String> {
    LOGGED.lock().unwrap().clone()
}

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn capture_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(LogCapture).unwrap();
        log::set_logger(&LogCapture).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// Captures all log records, and fails the test that logs the key.
struct LogCapture;

impl LogCapture {
    fn record_text(text: String) {
        assert_no_key(&text);
        LOGGED.lock().unwrap().push(text);
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut text = Text(attributes.metadata().name().to_owned());
        attributes.record(&mut text);
        Self::record_text(text.0);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        Self::record_text(text.0);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!(
            "{} {}",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut text);
        Self::record_text(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl log::Log for LogCapture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        Self::record_text(format!(
            "{} {} {}",
            record.level(),
            record.target(),
            record.args()
        ));
    }
    fn flush(&self) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        let _ = write!(self.0, " {field}={value:?}");
    }
}
