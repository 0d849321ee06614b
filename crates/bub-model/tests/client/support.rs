//! A client, endpoints and requests for tests; and an ear on every log record.

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

/// Long enough for a busy machine; reached only when something hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn client() -> ModelClient {
    listen();
    ModelClient::new(HttpOptions::default(), Redactor::new())
}

/// Retries that do not wait.
pub(crate) fn quick() -> CallOptions {
    let at_once = Backoff {
        initial: Duration::ZERO,
        ..Backoff::default()
    };
    CallOptions {
        backoff: at_once,
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

/// Everything that a stream gives, in real time at most [`TEST_TIMEOUT`].
pub(crate) async fn collect(stream: ModelEventStream) -> (Vec<ModelEvent>, Option<ModelError>) {
    tokio::time::timeout(TEST_TIMEOUT, drain(stream))
        .await
        .expect("the stream hangs")
}

/// Everything that a stream gives, without a clock of its own.
pub(crate) async fn drain(mut stream: ModelEventStream) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(stream.next().await.is_none(), "something follows an error");
                check(&format!("{error} {error:?}"));
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

/// The answer so far; an error when it is not whole.
pub(crate) fn whole(events: Vec<ModelEvent>) -> Result<Completion, ModelError> {
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

/// Stops the test when a text has the key in it.
pub(crate) fn check(text: &str) {
    assert!(!text.contains(KEY), "the key is in: {text}");
}

/// Everything that was logged, at every level, by us and by the libraries below.
pub(crate) fn logged() -> Vec<String> {
    LOGGED.lock().unwrap().clone()
}

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Ear).unwrap();
        log::set_logger(&Ear).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
}

/// Hears everything, and fails the test in which the key is said.
struct Ear;

impl Ear {
    fn hear(text: String) {
        check(&text);
        LOGGED.lock().unwrap().push(text);
    }
}

impl Subscriber for Ear {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut text = Text(attributes.metadata().name().to_owned());
        attributes.record(&mut text);
        Self::hear(text.0);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        Self::hear(text.0);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!(
            "{} {}",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut text);
        Self::hear(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl log::Log for Ear {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        Self::hear(format!(
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
