//! The webhook with a gateway: journal, lanes and outbox as a client sees them. The journal outlives a gateway.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use bub::{
    gateway::{
        JournalKind,
        testing::{self, FakeModel, RunningGateway},
    },
    kernel::{Channel, Envelope, Error, Framework, MessageHandler, Result, hooks},
    tape::Durability,
};
use bub_http::webhook::{WebhookChannel, WebhookOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    webhook_callback::receive,
    webhook_support::{HttpAnswer, TOKEN, begin},
};

/// The plugin with the webhook channel.
#[derive(Clone, Default)]
struct WebhookPlugin {
    webhook: Arc<OnceLock<Arc<WebhookChannel>>>,
    waiting: Option<usize>,
}

#[hooks]
impl WebhookPlugin {
    fn resolve_session(&self, message: &Envelope) -> Result<Option<String>> {
        if message.content() == "nowhere" {
            Err(Error::unknown("no session"))
        } else {
            Ok(None)
        }
    }

    fn provide_channels(&self, message_handler: &MessageHandler) -> Vec<Arc<dyn Channel>> {
        let mut options = WebhookOptions::default();
        options.token = Some(TOKEN.into());
        options.listen = String::from("127.0.0.1:0");
        options.callback_hosts = vec!["127.0.0.1".to_owned()];
        options.keep_alive = std::time::Duration::from_millis(20);
        options.waiting = self.waiting.unwrap_or(options.waiting);
        let webhook = self
            .webhook
            .get_or_init(|| Arc::new(WebhookChannel::new(options, Arc::clone(message_handler))));
        vec![Arc::clone(webhook) as Arc<dyn Channel>]
    }
}

struct GatewayFixture {
    directory: PathBuf,
    address: SocketAddr,
    model: FakeModel,
    running: RunningGateway,
}

impl GatewayFixture {
    async fn open(directory: &Path) -> Self {
        Self::with(directory, WebhookPlugin::default()).await
    }

    async fn with(directory: &Path, plugin: WebhookPlugin) -> Self {
        let webhook = Arc::clone(&plugin.webhook);
        let model = FakeModel {
            in_deltas: true,
            ..FakeModel::default()
        };
        let framework = Framework::builder()
            .plugin("model", model.clone())
            .plugin("webhook", plugin)
            .build();
        framework
            .settings()
            .redactor()
            .register(&"sesame-open".into());
        let options = testing::options(JournalKind::file(directory, Durability::Os));
        let running = RunningGateway::start(&framework, options, &["all"])
            .await
            .unwrap();
        let webhook = webhook.get().unwrap();
        let address = loop {
            match webhook.address() {
                Some(address) => break address,
                None => tokio::task::yield_now().await,
            }
        };
        Self {
            directory: directory.to_owned(),
            address,
            model,
            running,
        }
    }

    async fn post(&self, body: Value) -> HttpAnswer {
        begin(self.address, "POST", "/v1/messages", "", &body.to_string())
            .await
            .finish()
            .await
    }

    /// Waits until no other request waits for a reply.
    async fn wait_free(&self) {
        while self
            .post(json!({"content": "hello", "chat_id": "probe"}))
            .await
            .status
            == 429
        {}
    }

    async fn query(&self, request: &str) -> Value {
        bub::gateway::status::send_request(&self.directory, &json!({"do": request}))
            .await
            .unwrap()
            .unwrap()
    }

    /// Waits until `count` replies are undelivered.
    async fn wait_undelivered(&self, count: usize) {
        while self.query("outbox").await["replies"]
            .as_array()
            .unwrap()
            .len()
            != count
        {}
    }

    async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_message_is_answered_once_however_often_it_is_posted_also_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let running = GatewayFixture::open(home.path()).await;
    let body = json!({"content": "hello", "idempotency_key": "k"});
    let first = running.post(body.clone()).await;
    assert_eq!(
        (first.status, &first.json()["reply"]),
        (200, &json!("echo: hello"))
    );
    assert_eq!(running.post(body.clone()).await.json(), first.json());
    running.stop().await;

    let running = GatewayFixture::open(home.path()).await;
    let again = running.post(body).await;
    assert_eq!(
        (again.status, again.json()),
        (
            200,
            json!({"id": first.json()["id"], "status": "delivered"})
        )
    );
    running.stop().await;
}

// L1: a reply that was written to no connection waits for a request with the same key, also across restarts and further
// messages. The status shows it, and it counts as delivered once it is written to a connection.
#[tokio::test]
async fn a_reply_whose_client_has_gone_waits_for_its_key() {
    let home = tempfile::tempdir().unwrap();
    for reply in ["sync", "stream"] {
        let running = GatewayFixture::with(
            home.path(),
            WebhookPlugin {
                waiting: Some(1),
                ..WebhookPlugin::default()
            },
        )
        .await;
        let body = json!({"content": "wait", "idempotency_key": reply, "reply": reply}).to_string();
        let client = begin(running.address, "POST", "/v1/messages", "", &body).await;
        running.model.wait_prompts(1).await;
        drop(client);
        running.wait_free().await;
        running.model.permits.add_permits(1);
        running.wait_undelivered(1).await;
        while running.query("status").await["unclaimed"] != 1 {}
        assert_eq!(running.query("status").await["failed"], 0);
        running.stop().await;

        // No client asks while this gateway runs.
        let running = GatewayFixture::open(home.path()).await;
        running.wait_undelivered(1).await;
        running.stop().await;

        let running = GatewayFixture::open(home.path()).await;
        let answer = begin(running.address, "POST", "/v1/messages", "", &body)
            .await
            .finish()
            .await;
        assert!(
            answer.status == 200 && answer.body.contains(r#""reply":"echo: wait""#),
            "{answer:?}"
        );
        running.wait_undelivered(0).await;
        running.stop().await;
    }
}

// H-144: the rejection is the response; no reply waits for a request with the key.
#[tokio::test]
async fn a_message_without_a_session_is_refused_and_leaves_no_reply() {
    let home = tempfile::tempdir().unwrap();
    let running = GatewayFixture::open(home.path()).await;
    let answer = running
        .post(json!({"content": "nowhere", "idempotency_key": "k"}))
        .await;
    assert_eq!(answer.status, 500, "{answer:?}");
    let is_open = |reply: &Value| reply["state"] == "queued" || reply["state"] == "retrying";
    let remaining = loop {
        let outbox = running.query("outbox").await;
        let replies = outbox["replies"].as_array().unwrap();
        if !replies.iter().any(is_open) {
            break replies.clone();
        }
    };
    assert!(remaining.is_empty(), "{remaining:?}");
    running.stop().await;
}

// S-54
#[tokio::test]
async fn a_stream_grows_though_the_setting_streams_to_nobody() {
    let home = tempfile::tempdir().unwrap();
    let running = GatewayFixture::open(home.path()).await;
    let answer = running
        .post(json!({"content": "hello", "reply": "stream"}))
        .await;
    let expected = [
        "event: accepted",
        r#"{"delta":"echo: "}"#,
        r#"{"delta":"hello"}"#,
        r#""reply":"echo: hello""#,
    ];
    let positions: Vec<_> = expected
        .iter()
        .map(|text| answer.body.find(text).expect(text))
        .collect();
    assert!(positions.is_sorted(), "{answer:?}");
    running.stop().await;
}

// Issue 22, point 6: a secret that is split over deltas reaches no client.
#[tokio::test]
async fn a_secret_in_a_stream_is_redacted_however_it_is_split() {
    let home = tempfile::tempdir().unwrap();
    let running = GatewayFixture::open(home.path()).await;
    let answer = running
        .post(json!({"content": "spell say sesame-open, sesame", "reply": "stream"}))
        .await;
    let deltas: Vec<Value> = answer
        .body
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let text: String = deltas
        .iter()
        .filter_map(|data| data["delta"].as_str())
        .collect();
    assert_eq!(text, "say ***, sesame", "{answer:?}");
    assert!(
        answer.body.contains(r#""reply":"say ***, sesame""#),
        "{answer:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_callback_that_failed_is_posted_again_after_a_restart_under_the_same_key() {
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let running = GatewayFixture::open(home.path()).await;
    let body = json!({"content": "hello", "reply": "callback", "callback_url": url});
    let accepted = running.post(body).await;
    assert_eq!(accepted.status, 202);
    let key = |head: &str| {
        head.split("idempotency-key: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_owned()
    };
    let (first, _) = receive(&listener, "503 Busy").await;
    running.stop().await;

    let running = GatewayFixture::open(home.path()).await;
    let (second, body) = receive(&listener, "200 OK").await;
    assert_eq!(key(&first), key(&second));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["reply"], &body["id"]),
        (&json!("echo: hello"), &accepted.json()["id"])
    );
    running.stop().await;
}

#[tokio::test]
async fn many_clients_at_once_each_get_their_own_reply() {
    let home = tempfile::tempdir().unwrap();
    let running = GatewayFixture::open(home.path()).await;
    let ask = async |number: usize| {
        let body = json!({"content": format!("n{number}"), "chat_id": format!("c{}", number % 7)});
        (number, running.post(body).await.json()["reply"].clone())
    };
    for (number, reply) in futures_util::future::join_all((0..100).map(ask)).await {
        assert_eq!(reply, format!("echo: n{number}"));
    }
    running.stop().await;
}
