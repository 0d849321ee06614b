//! Tests of fallback models: order, lazy lookup and the reported error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bub_model::{
    CallOptions, Candidates, Endpoint, EndpointSource, ModelClient, ModelError, ModelErrorKind,
    ModelEvent, ModelId, Models, RecoveryAction, WireFormat,
};
use bub_settings::{Secret, testing::load};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use super::support::{
    assert_no_key, client, collect, completion, named_endpoint, quick, request, text,
};

/// Endpoints by name. Records lookups; a model that is not listed has no key.
#[derive(Default)]
struct Source {
    endpoints: HashMap<String, Endpoint>,
    renewed: Mutex<Option<Endpoint>>,
    asked: Mutex<Vec<String>>,
}

impl Source {
    fn with(pairs: &[(&str, &ModelServer, WireFormat)]) -> Self {
        let endpoints = pairs
            .iter()
            .map(|(id, server, wire)| ((*id).to_owned(), named_endpoint(server, *wire, id)));
        Self {
            endpoints: endpoints.collect(),
            ..Self::default()
        }
    }

    fn candidates(self: &Arc<Self>, ids: &[&str]) -> Candidates {
        let ids: Vec<ModelId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        Candidates::new(Arc::clone(self) as Arc<dyn EndpointSource>, ids)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl EndpointSource for Source {
    async fn endpoint(&self, id: &ModelId) -> Result<Endpoint, ModelError> {
        self.asked.lock().unwrap().push(id.to_string());
        let found = self.endpoints.get(&id.to_string()).cloned();
        let missing = || {
            ModelError::new(
                ModelErrorKind::Setup,
                RecoveryAction::Reauthenticate,
                "no API key: set X_API_KEY",
            )
        };
        found.ok_or_else(missing)
    }

    async fn renew_endpoint(&self, _: &Endpoint) -> Result<Option<Endpoint>, ModelError> {
        Ok(self.renewed.lock().unwrap().take())
    }
}

/// H-80: models are tried in order until the first byte, each with its own name and wire format.
#[tokio::test]
async fn candidates_are_tried_in_order() {
    let (first, second, third) = (
        ModelServer::start(),
        ModelServer::start(),
        ModelServer::start(),
    );
    first.otherwise(Reply::status(503));
    second.otherwise(Reply::status(404));
    third.script(Reply::text("here"));
    let source = Arc::new(Source::with(&[
        ("a:one", &first, WireFormat::ChatCompletions),
        ("b:two", &second, WireFormat::Messages),
        ("c:three", &third, WireFormat::Responses),
    ]));
    let stream = client().stream(
        source.candidates(&["a:one", "b:two", "c:three"]),
        request(true),
        quick(),
    );
    let (events, error) = collect(stream).await;
    assert_eq!((error, text(&events).as_str()), (None, "here"));
    assert!(!events.contains(&ModelEvent::Restart));
    assert_eq!(
        (
            first.requests().len(),
            second.requests().len(),
            third.requests().len()
        ),
        (3, 1, 1)
    );
    assert_eq!(first.requests()[0].json()["model"], "one");
    assert_eq!(third.requests()[0].json()["model"], "three");
}

/// W-46: a fallback without a key does not affect the first model and is not looked up.
#[tokio::test]
async fn a_healthy_model_is_not_harmed_by_a_broken_fallback() {
    let server = ModelServer::start();
    server.script(Reply::text("fine"));
    let source = Arc::new(Source::with(&[(
        "a:one",
        &server,
        WireFormat::ChatCompletions,
    )]));
    let stream = client().stream(
        source.candidates(&["a:one", "nokey:x"]),
        request(true),
        quick(),
    );
    let (_, error) = collect(stream).await;
    assert_eq!(error, None);
    assert_eq!(source.asked(), ["a:one"]);
}

#[tokio::test]
async fn a_first_model_without_a_key_leaves_the_turn_to_the_next() {
    let server = ModelServer::start();
    server.script(Reply::text("fine"));
    let source = Arc::new(Source::with(&[(
        "b:two",
        &server,
        WireFormat::ChatCompletions,
    )]));
    let mut stream = client().stream(
        source.candidates(&["nokey:x", "b:two"]),
        request(true),
        quick(),
    );
    let mut events = Vec::new();
    while let Some(event) = futures_util::StreamExt::next(&mut stream).await {
        events.push(event.unwrap());
    }
    assert_eq!(text(&events), "fine");
    assert_eq!(stream.model().unwrap().to_string(), "b:two");
}

/// H-80: the first error is reported and contains the others.
#[tokio::test]
async fn the_error_names_the_first_cause_and_what_was_tried() {
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(429).message("slow down"));
    second.otherwise(Reply::html(502, "Bad Gateway"));
    let source = Arc::new(Source::with(&[
        ("a:one", &first, WireFormat::ChatCompletions),
        ("b:two", &second, WireFormat::ChatCompletions),
    ]));
    let stream = client().stream(
        source.candidates(&["a:one", "b:two", "nokey:x"]),
        request(true),
        quick(),
    );
    let (_, error) = collect(stream).await;
    let error = error.unwrap();
    assert_eq!(
        (error.action, error.status, error.provider.as_deref()),
        (RecoveryAction::Retry, Some(429), Some("a:one"))
    );
    assert_eq!(
        error.to_string(),
        "a:one: slow down; failed after 3 attempts; try again later (HTTP 429, rate_limit_error); \
         also b:two: received a web page: Bad Gateway; failed after 3 attempts; try again later (HTTP 502); \
         also nokey:x: no API key: set X_API_KEY"
    );
    let others: Vec<_> = error
        .others
        .iter()
        .map(|other| (other.status, other.action))
        .collect();
    assert_eq!(
        others,
        [
            (Some(502), RecoveryAction::Retry),
            (None, RecoveryAction::Reauthenticate)
        ]
    );
}

#[tokio::test]
async fn an_overflow_is_reported_instead_of_sent_elsewhere() {
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(413));
    let source = Arc::new(Source::with(&[
        ("a:one", &first, WireFormat::ChatCompletions),
        ("b:two", &second, WireFormat::ChatCompletions),
    ]));
    let stream = client().stream(
        source.candidates(&["a:one", "b:two"]),
        request(true),
        quick(),
    );
    assert_eq!(
        collect(stream).await.1.unwrap().action,
        RecoveryAction::ShrinkContext
    );
    assert_eq!(second.connections(), 0);
    // Also if the second model reports it, because the caller can act on it.
    second.otherwise(Reply::status(404));
    let stream = client().stream(
        source.candidates(&["b:two", "a:one"]),
        request(true),
        quick(),
    );
    let error = collect(stream).await.1.unwrap();
    assert_eq!(
        (error.action, error.provider.as_deref()),
        (RecoveryAction::ShrinkContext, Some("a:one"))
    );
    assert!(
        error
            .to_string()
            .contains("; also b:two: scripted error 404"),
        "{error}"
    );
}

#[tokio::test]
async fn after_the_first_byte_no_other_model_is_asked_unless_the_output_is_discarded() {
    for restartable in [false, true] {
        let (first, second) = (ModelServer::start(), ModelServer::start());
        first.otherwise(
            Reply::deltas(["half", "way"])
                .error_event(json!({"code": "model_not_found", "message": "gone"})),
        );
        second.otherwise(Reply::text("other"));
        let source = Arc::new(Source::with(&[
            ("a:one", &first, WireFormat::ChatCompletions),
            ("b:two", &second, WireFormat::ChatCompletions),
        ]));
        let options = CallOptions {
            restartable,
            ..quick()
        };
        let stream = client().stream(
            source.candidates(&["a:one", "b:two"]),
            request(true),
            options,
        );
        let (events, error) = collect(stream).await;
        if restartable {
            assert_eq!(error, None);
            assert_eq!(completion(events).unwrap().text, "other");
        } else {
            assert_eq!(
                (error.unwrap().action, text(&events).as_str()),
                (RecoveryAction::NextModel, "halfway")
            );
            assert_eq!(second.connections(), 0);
        }
    }
}

/// If a server requests a long delay, the next model is tried.
#[tokio::test]
async fn a_long_wait_is_not_spent_when_another_model_is_there() {
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(429).header("retry-after", "45"));
    second.otherwise(Reply::text("at once"));
    let source = Arc::new(Source::with(&[
        ("a:one", &first, WireFormat::ChatCompletions),
        ("b:two", &second, WireFormat::ChatCompletions),
    ]));
    let stream = client().stream(
        source.candidates(&["a:one", "b:two"]),
        request(true),
        CallOptions::default(),
    );
    assert_eq!(text(&collect(stream).await.0), "at once");
    assert_eq!(first.requests().len(), 1);
}

#[tokio::test]
async fn refused_credentials_are_renewed_once() {
    let server = ModelServer::start();
    server
        .script(Reply::status(401))
        .script(Reply::text("in"))
        .otherwise(Reply::status(401));
    let source = Source::with(&[("a:one", &server, WireFormat::ChatCompletions)]);
    let mut fresh = named_endpoint(&server, WireFormat::ChatCompletions, "a:one");
    fresh.headers = vec![(
        "authorization".into(),
        Secret::from("Bearer fresh-token-123456"),
    )];
    *source.renewed.lock().unwrap() = Some(fresh);
    let source = Arc::new(source);
    let stream = client().stream(source.candidates(&["a:one"]), request(true), quick());
    assert_eq!(text(&collect(stream).await.0), "in");
    assert_eq!(
        server.requests()[1].header("authorization"),
        Some("Bearer fresh-token-123456")
    );
    let stream = client().stream(source.candidates(&["a:one"]), request(true), quick());
    assert_eq!(
        collect(stream).await.1.unwrap().action,
        RecoveryAction::Reauthenticate
    );
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn no_candidates_is_an_error_not_a_hang() {
    let source = Arc::new(Source::default());
    let stream = client().stream(source.candidates(&[]), request(true), quick());
    let (events, error) = collect(stream).await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::Setup);
    assert!(events.is_empty());
}

/// W-39: each server receives only its own key.
#[tokio::test]
async fn a_key_goes_only_to_the_provider_it_belongs_to() {
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(500));
    second.otherwise(Reply::text("x"));
    let mut source = Source::with(&[
        ("a:one", &first, WireFormat::ChatCompletions),
        ("b:two", &second, WireFormat::Messages),
    ]);
    for (id, key) in [
        ("a:one", "key-of-the-first"),
        ("b:two", "key-of-the-second"),
    ] {
        let endpoint = source.endpoints.get_mut(id).unwrap();
        endpoint.headers.clear();
        *endpoint = endpoint.clone().with_key(&Secret::from(key));
    }
    let source = Arc::new(source);
    let stream = client().stream(
        source.candidates(&["a:one", "b:two"]),
        request(true),
        quick(),
    );
    collect(stream).await;
    for (server, own, other) in [
        (&first, "key-of-the-first", "key-of-the-second"),
        (&second, "key-of-the-second", "key-of-the-first"),
    ] {
        for request in server.requests() {
            let sent = format!("{request:?}");
            assert!(sent.contains(own) && !sent.contains(other));
        }
    }
}

/// Redirects are not followed, neither to another host nor on the same host.
#[tokio::test]
async fn redirects_never_carry_the_key_anywhere() {
    for status in [301, 302, 303, 307, 308] {
        let (server, thief) = (ModelServer::start(), ModelServer::start());
        server.script(
            Reply::status(status)
                .header("location", &format!("{}/v1/chat/completions", thief.url())),
        );
        let endpoint = named_endpoint(&server, WireFormat::ChatCompletions, "a:one");
        let (_, error) = collect(client().stream(endpoint, request(true), quick())).await;
        let error = error.unwrap();
        assert_eq!(
            (error.status, error.action),
            (Some(status), RecoveryAction::NextModel)
        );
        assert!(error.message.contains("redirect"), "{error}");
        assert_no_key(&error.to_string());
        assert_eq!((server.requests().len(), thief.connections()), (1, 0));
    }
}

/// From settings to an answer: the first provider fails, and the fallback receives only its own key.
#[tokio::test]
async fn configured_models_are_called_with_their_own_keys() {
    let (first, second) = (ModelServer::start(), ModelServer::start());
    first.otherwise(Reply::status(404));
    second.otherwise(Reply::text("from the second"));
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model: one:a\nmodel_timeout_seconds: 60\nproviders:\n  one: {{base_url: '{}/v1'}}\n  two: {{base_url: '{}/v1'}}\n",
        first.url(),
        second.url()
    );
    std::fs::create_dir(home.path().join(".bub")).unwrap();
    std::fs::write(home.path().join(".bub/config.yml"), config).unwrap();
    let variables = [
        ("HOME", home.path().as_os_str()),
        ("BUB_ONE_API_KEY", "key-of-the-first".as_ref()),
        ("BUB_TWO_API_KEY", "key-of-the-second".as_ref()),
    ];
    let settings = Arc::new(load(variables, bub_model::settings::sections()));
    let client = ModelClient::from_settings(&settings);
    let models =
        Arc::new(Models::new(Arc::clone(&settings), Arc::new(client.clone()), &[]).unwrap());
    let ids = ["one:a", "two:b"].map(|id| models.resolve_model(id).unwrap());
    let options = CallOptions::from_settings(&settings);
    assert_eq!(options.timeout, Some(std::time::Duration::from_mins(1)));
    let stream = client.stream(Candidates::new(models, ids), request(true), options);
    let (events, error) = collect(stream).await;
    assert_eq!((error, text(&events).as_str()), (None, "from the second"));
    assert_eq!(
        first.requests()[0].header("authorization"),
        Some("Bearer key-of-the-first")
    );
    assert_eq!(
        second.requests()[0].header("authorization"),
        Some("Bearer key-of-the-second")
    );
}
