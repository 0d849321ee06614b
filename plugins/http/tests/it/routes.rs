//! Routes of other plugins on the listener.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bub::{
    Framework, FrameworkRef, HttpBody, HttpRoute, MessageHandler, PluginContext, Result, Role,
    RouteAccess, RouteRequest, RouteResponse, hooks,
    http::{Method, Response},
    kernel::{CancellationToken, Channel},
};
use bub_http::webhook::{WebhookChannel, WebhookOptions};
use futures_util::{StreamExt, stream};
use tokio::sync::Notify;

use crate::webhook_support::{Client, HttpAnswer, TOKEN, begin, connect};

/// A plugin with routes, and its framework.
struct Routes {
    make: fn(&Arc<Notify>) -> Vec<HttpRoute>,
    dropped: Arc<Notify>,
}

#[hooks]
impl Routes {
    fn provide_routes(&self) -> Vec<HttpRoute> {
        (self.make)(&self.dropped)
    }
}

struct RouteFixture {
    webhook: Arc<WebhookChannel>,
    stop: CancellationToken,
    dropped: Arc<Notify>,
    _framework: Framework,
}

type MakeRoutes = fn(&Arc<Notify>) -> Vec<HttpRoute>;

fn channel(plugins: &[(&'static str, MakeRoutes)]) -> (WebhookChannel, Framework, Arc<Notify>) {
    channel_with_token(plugins, Some(TOKEN))
}

fn channel_with_token(
    plugins: &[(&'static str, MakeRoutes)],
    token: Option<&str>,
) -> (WebhookChannel, Framework, Arc<Notify>) {
    let dropped = Arc::new(Notify::new());
    let mut builder = Framework::builder();
    for (name, make) in plugins.iter().copied() {
        let dropped = Arc::clone(&dropped);
        builder = builder.plugin(name, Routes { make, dropped });
    }
    // The last plugin tells its framework.
    let (sender, receiver) = std::sync::mpsc::channel::<FrameworkRef>();
    let framework = builder
        .plugin_with("reference", move |context: &PluginContext<'_>| {
            sender.send(context.framework.clone()).unwrap();
            Routes {
                make: |_| Vec::new(),
                dropped: Arc::default(),
            }
        })
        .build();
    let mut options = WebhookOptions::default();
    options.token = token.map(Into::into);
    options.listen = String::from("127.0.0.1:0");
    options.body_limit = 1000;
    options.read_timeout = Duration::from_millis(200);
    let handler: MessageHandler = Arc::new(|_| Box::pin(std::future::ready(Ok(()))));
    let channel = WebhookChannel::new(options, handler);
    let channel = channel.with_framework(receiver.recv().unwrap());
    (channel, framework, dropped)
}

impl RouteFixture {
    async fn open(make: MakeRoutes) -> Self {
        let (webhook, framework, dropped) = channel(&[("pages", make)]);
        let (webhook, stop) = (Arc::new(webhook), CancellationToken::new());
        webhook.start(stop.clone()).await.unwrap();
        Self {
            webhook,
            stop,
            dropped,
            _framework: framework,
        }
    }

    async fn begin(&self, method: &str, path: &str, body: &str) -> Client {
        let address = self.webhook.address().unwrap();
        begin(address, method, path, "", body).await
    }

    async fn request(&self, method: &str, path: &str, body: &str) -> HttpAnswer {
        self.begin(method, path, body).await.finish().await
    }

    async fn request_without_token(&self, path: &str) -> HttpAnswer {
        let mut client = connect(self.webhook.address().unwrap()).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        client.write(&head).await;
        client.finish().await
    }
}

fn text(text: impl Into<String>) -> RouteResponse {
    Response::new(HttpBody::from(text.into()))
}

/// Answers with the path, the parameters and the sender of the request.
async fn describe(request: RouteRequest) -> Result<RouteResponse> {
    let (role, path) = (request.sender.role.name(), request.uri().path());
    Ok(text(format!("{role} {path} {:?}", request.params)))
}

const MEMBER: RouteAccess = RouteAccess::Role(Role::Member);

#[tokio::test]
async fn a_route_gets_its_parameters_and_the_authenticated_sender() {
    let fixture = RouteFixture::open(|_| {
        vec![
            HttpRoute::new(Method::GET, "/a/{name}", MEMBER, describe),
            HttpRoute::new(Method::PUT, "/a/{name}", MEMBER, describe),
            HttpRoute::new(Method::GET, "/open", RouteAccess::Public, describe),
            HttpRoute::new(
                Method::GET,
                "/mine",
                RouteAccess::Role(Role::Owner),
                describe,
            ),
            HttpRoute::prefix("/ui/", MEMBER, describe),
        ]
    })
    .await;
    let body = |answer: HttpAnswer| (answer.status, answer.body);
    let answer = body(fixture.request("GET", "/a/b", "").await);
    assert_eq!(answer, (200, r#"member /a/b [("name", "b")]"#.to_owned()));
    let wrong = fixture.request("POST", "/a/b", "").await;
    assert_eq!(wrong.problem(), (405, "method_not_allowed".to_owned()));
    assert!(wrong.head.contains("allow: GET, PUT"), "{wrong:?}");
    for path in ["/a/b", "/ui", "/mine"] {
        let answer = fixture.request_without_token(path).await;
        assert_eq!(answer.problem(), (401, "unauthorized".to_owned()), "{path}");
    }
    let open = body(fixture.request_without_token("/open").await);
    assert_eq!(open, (200, "guest /open []".to_owned()));
    let open = body(fixture.request("GET", "/open", "").await);
    assert_eq!(open.1, "member /open []");
    let mine = fixture.request("GET", "/mine", "").await;
    assert_eq!(mine.problem(), (403, "forbidden".to_owned()));
    for path in ["/ui", "/ui/", "/ui/x/y"] {
        for method in ["GET", "DELETE"] {
            let (status, body) = body(fixture.request(method, path, "").await);
            assert!(status == 200 && body.starts_with(&format!("member {path} ")));
        }
    }
    assert_eq!(fixture.request("GET", "/uix", "").await.status, 404);
    // The routes of the webhook are still there.
    assert_eq!(fixture.request_without_token("/healthz").await.status, 200);
    assert_eq!(fixture.request("GET", "/v1/messages", "").await.status, 405);
}

// Issue 21: a public page must not need a token that opens the webhook.
#[tokio::test]
async fn without_a_token_public_routes_are_served_and_nothing_else() {
    let make: MakeRoutes = |_| {
        vec![
            HttpRoute::new(Method::GET, "/open", RouteAccess::Public, describe),
            HttpRoute::new(Method::GET, "/members", MEMBER, describe),
        ]
    };
    let (webhook, _framework, _) = channel_with_token(&[("pages", make)], None);
    assert!(webhook.is_enabled());
    webhook.validate_settings().unwrap();
    webhook.start(CancellationToken::new()).await.unwrap();
    let address = webhook.address().unwrap();
    for (method, path, status) in [
        ("GET", "/open", 200),
        ("GET", "/healthz", 200),
        ("GET", "/members", 401),
        ("POST", "/v1/messages", 401),
    ] {
        for token in ["", "Bearer ", TOKEN] {
            let mut client = connect(address).await;
            let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n");
            client
                .write(&format!("{head}authorization: Bearer {token}\r\n\r\n"))
                .await;
            assert_eq!(client.finish().await.status, status, "{method} {path}");
        }
    }
    let (closed, _framework, _) = channel_with_token(&[], None);
    assert!(!closed.is_enabled());
    assert!(closed.start(CancellationToken::new()).await.is_err());
}

#[tokio::test]
async fn the_body_of_a_request_has_a_size_and_a_time_limit() {
    let fixture = RouteFixture::open(|_| {
        let read = |mut request: RouteRequest| async move {
            let body = request.read_body().await?;
            Ok(text(body.len().to_string()))
        };
        vec![
            HttpRoute::new(Method::POST, "/small", MEMBER, read).body_limit(10),
            HttpRoute::new(Method::POST, "/default", MEMBER, read),
        ]
    })
    .await;
    assert_eq!(
        fixture.request("POST", "/small", "0123456789").await.body,
        "10"
    );
    let large = fixture.request("POST", "/small", "0123456789+").await;
    assert_eq!(large.problem(), (413, "too_large".to_owned()));
    let large = fixture.request("POST", "/default", &"x".repeat(1001)).await;
    assert_eq!(large.problem(), (413, "too_large".to_owned()));
    let send = async |body: &str| {
        let mut client = connect(fixture.webhook.address().unwrap()).await;
        let head = format!(
            "POST /small HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n"
        );
        client.write(&format!("{head}{body}")).await;
        client.finish().await.problem()
    };
    let chunked = "transfer-encoding: chunked\r\n\r\n14\r\n01234567890123456789\r\n0\r\n\r\n";
    assert_eq!(send(chunked).await, (413, "too_large".to_owned()));
    let slow = send("content-length: 5\r\n\r\n012").await;
    assert_eq!(slow, (408, "too_slow".to_owned()));
}

#[tokio::test]
async fn errors_and_panics_of_a_route_are_answered() {
    let fixture = RouteFixture::open(|_| {
        let fail = |request: RouteRequest| async move {
            match request.param("kind") {
                Some("input") => Err(bub::Error::invalid_input("no number")),
                Some("missing") => Err(bub::Error::not_found("no page")),
                Some("panic") => panic!("on purpose"),
                _ => Err(std::io::Error::other("broken").into()),
            }
        };
        vec![HttpRoute::new(Method::GET, "/{kind}", MEMBER, fail)]
    })
    .await;
    for (path, status, code) in [
        ("/input", 400, "invalid_request"),
        ("/missing", 404, "not_found"),
        ("/other", 500, "failed"),
        ("/panic", 500, "failed"),
    ] {
        let answer = fixture.request("GET", path, "").await;
        assert_eq!(answer.problem(), (status, code.to_owned()), "{path}");
    }
}

/// Notifies when a stream is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Streams events until the listener stops.
fn event_routes(dropped: &Arc<Notify>) -> Vec<HttpRoute> {
    let dropped = Arc::clone(dropped);
    let events = move |request: RouteRequest| {
        let guard = NotifyOnDrop(Arc::clone(&dropped));
        let stop = request.stop.clone().cancelled_owned();
        let first = stream::iter([Ok::<_, Infallible>("data: 1\n\n")]);
        let events = first.chain(stream::pending()).take_until(stop);
        let events = events.inspect(move |_| {
            let _ = &guard;
        });
        let mut response = Response::new(HttpBody::from_stream(events));
        let value = "text/event-stream".parse().unwrap();
        response.headers_mut().insert("content-type", value);
        std::future::ready(Ok(response))
    };
    vec![HttpRoute::new(Method::GET, "/events", MEMBER, events)]
}

#[tokio::test]
async fn a_stream_ends_when_the_client_goes_away_and_when_the_listener_stops() {
    let fixture = RouteFixture::open(event_routes).await;
    let mut client = fixture.begin("GET", "/events", "").await;
    let received = client.until("data: 1\n\n").await;
    assert!(received.contains("content-type: text/event-stream"));
    drop(client);
    fixture.dropped.notified().await;
    let mut client = fixture.begin("GET", "/events", "").await;
    client.until("data: 1\n\n").await;
    fixture.stop.cancel();
    fixture.webhook.stop().await.unwrap();
    assert_eq!(client.finish().await.status, 200);
}

#[tokio::test]
async fn conflicting_and_invalid_routes_are_one_clear_error() {
    fn a(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![
            HttpRoute::new(Method::GET, "/a/{x}", MEMBER, describe),
            HttpRoute::new(Method::GET, "/b", MEMBER, describe),
            HttpRoute::new(Method::GET, "/c", MEMBER, describe),
        ]
    }
    fn same(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::new(Method::GET, "/b", MEMBER, describe)]
    }
    fn other_name(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::new(Method::GET, "/a/{y}", MEMBER, describe)]
    }
    fn prefix(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::prefix("/c", MEMBER, describe)]
    }
    fn webhook(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::new(
            Method::POST,
            "/v1/messages",
            MEMBER,
            describe,
        )]
    }
    fn other_method(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::new(
            Method::GET,
            "/v1/messages",
            MEMBER,
            describe,
        )]
    }
    fn invalid(_: &Arc<Notify>) -> Vec<HttpRoute> {
        vec![HttpRoute::new(Method::GET, "/{a", MEMBER, describe)]
    }
    let cases: [(MakeRoutes, &[&str]); 5] = [
        (same, &["`/b` of plugin `first`", "`/b` of plugin `second`"]),
        (
            other_name,
            &["`/a/{x}` of plugin `first`", "`/a/{y}` of plugin `second`"],
        ),
        (
            prefix,
            &["`/c` of plugin `first`", "`/c` of plugin `second`"],
        ),
        (
            webhook,
            &["`/v1/messages` of plugin `http`", "of plugin `second`"],
        ),
        (invalid, &["invalid HTTP route `/{a` of plugin `second`"]),
    ];
    for (second, expected) in cases {
        let (webhook, _framework, _) = channel(&[("first", a), ("second", second)]);
        let error = webhook.validate_settings().unwrap_err().to_string();
        for text in expected {
            assert!(error.contains(text), "{text}: {error}");
        }
        let started = webhook.start(CancellationToken::new()).await;
        assert_eq!(started.unwrap_err().to_string(), error);
    }
    let (webhook, _framework, _) = channel(&[("first", a), ("second", other_method)]);
    webhook.validate_settings().unwrap();
}

// A route can be tested without a listener.
#[tokio::test]
async fn a_route_is_called_without_a_listener() {
    let route = HttpRoute::new(Method::GET, "/open", RouteAccess::Public, describe);
    let request = bub::http::Request::get("/open").body(HttpBody::default());
    let request = RouteRequest::new(bub::Sender::default(), request.unwrap());
    let response = route.handle(request).await.unwrap();
    let body = response.into_body().read().await.unwrap();
    assert_eq!(body, "guest /open []");
}
