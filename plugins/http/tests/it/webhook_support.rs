//! A webhook without a gateway. The test takes the role of the gateway and writes HTTP requests as text.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub::kernel::{
    CancellationToken, Channel, DeliveryAttempt, Envelope, Error, Framework, Inbound,
    MessageHandler, MessageId, MessageOutcome, Outbound, Result, State, StreamEvent, Turn,
};
use bub_http::webhook::{WebhookChannel, WebhookOptions};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Mutex as AsyncMutex, mpsc},
};

pub(crate) const TOKEN: &str = "correct-horse-battery";

/// A running webhook and the messages that it accepted.
pub(crate) struct WebhookFixture {
    pub(crate) webhook: Arc<WebhookChannel>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    inbound: AsyncMutex<mpsc::UnboundedReceiver<Inbound>>,
    pub(crate) accepted: Arc<AtomicUsize>,
    /// Error for the next message.
    pub(crate) rejection: Arc<Mutex<Option<Error>>>,
    /// Messages by idempotency key.
    pub(crate) keys: Keys,
    replies: AtomicUsize,
}

type Keys = Arc<Mutex<HashMap<String, MessageId>>>;

impl WebhookFixture {
    pub(crate) async fn open() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut WebhookOptions)) -> Self {
        let mut options = WebhookOptions::default();
        options.token = Some(TOKEN.into());
        options.listen = String::from("127.0.0.1:0");
        change(&mut options);
        let (sender, inbound) = mpsc::unbounded_channel();
        let (accepted, rejection) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let keys = Keys::default();
        let handler = handler(
            sender,
            Arc::clone(&accepted),
            Arc::clone(&rejection),
            Arc::clone(&keys),
        );
        let webhook = Arc::new(WebhookChannel::new(options, handler));
        let stop = CancellationToken::new();
        webhook.start(stop.clone()).await.unwrap();
        let address = webhook.address().unwrap();
        let (inbound, replies) = (AsyncMutex::new(inbound), AtomicUsize::new(0));
        Self {
            webhook,
            address,
            stop,
            inbound,
            accepted,
            rejection,
            keys,
            replies,
        }
    }

    /// Waits for the next accepted message.
    pub(crate) async fn inbound(&self) -> Inbound {
        self.inbound.lock().await.recv().await.unwrap()
    }

    pub(crate) async fn post(&self, body: impl ToString) -> HttpAnswer {
        self.request("POST", "/v1/messages", "", &body.to_string())
            .await
    }

    pub(crate) async fn get(&self, id: &str) -> HttpAnswer {
        self.request("GET", &format!("/v1/messages/{id}"), "", "")
            .await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> HttpAnswer {
        let mut client = self.begin(method, path, headers, body).await;
        client.finish().await
    }

    /// Sends a request without waiting for its response.
    pub(crate) async fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Client {
        begin(self.address, method, path, headers, body).await
    }

    pub(crate) async fn begin_post(&self, body: impl ToString) -> Client {
        self.begin("POST", "/v1/messages", "", &body.to_string())
            .await
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(self.address).await
    }

    /// Delivers a reply, as the outbox does.
    pub(crate) async fn send(&self, message: &Inbound, text: &str) -> Result<()> {
        self.send_kind(message, text, "normal").await
    }

    pub(crate) async fn send_kind(&self, message: &Inbound, text: &str, kind: &str) -> Result<()> {
        let number = self.replies.fetch_add(1, Ordering::SeqCst);
        self.webhook
            .send(&outbound(message, &format!("r{number}"), text, kind))
            .await
    }

    /// Ends the turn of a message and delivers its replies.
    pub(crate) async fn answer(&self, message: &Inbound, texts: &[&str]) {
        settle(
            message,
            MessageOutcome::Done {
                replies: u32::try_from(texts.len()).unwrap(),
                report: None,
            },
        );
        for text in texts {
            self.send(message, text).await.unwrap();
        }
    }

    pub(crate) async fn delta(&self, message: &Inbound, delta: &str) {
        let framework = Framework::builder().build();
        let turn = Turn::detached(&framework, message.clone(), State::new());
        self.webhook
            .on_event(&StreamEvent::Text(delta.to_owned()), &turn)
            .await
            .unwrap();
    }
}

pub(crate) async fn connect(address: SocketAddr) -> Client {
    Client {
        stream: TcpStream::connect(address).await.unwrap(),
        received: String::new(),
    }
}

/// Sends a request with the correct token.
pub(crate) async fn begin(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Client {
    let mut client = connect(address).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n"
    );
    client
        .write(&format!(
            "{head}{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    client
}

/// Creates a reply as the outbox passes it to a channel.
pub(crate) fn outbound(message: &Inbound, reply_id: &str, text: &str, kind: &str) -> Outbound {
    let mut reply = Envelope::from_text(text)
        .with("channel", "webhook")
        .with("kind", kind);
    for name in ["chat_id", "reply_route"] {
        if let Some(value) = message.message.field(name) {
            reply.set(name, value.clone());
        }
    }
    let mut outbound = Outbound::new(reply);
    outbound.attempt = Some(DeliveryAttempt {
        reply_id: reply_id.into(),
        message_id: Some(id(message)),
        number: 1,
    });
    outbound
}

pub(crate) fn id(message: &Inbound) -> MessageId {
    let receipt = message.receipt.as_ref().unwrap();
    receipt.message_id().unwrap().clone()
}

pub(crate) fn settle(message: &Inbound, outcome: MessageOutcome) {
    message.receipt.as_ref().unwrap().settle(outcome);
}

/// Assigns the ids `m0`, `m1`, … and accepts each idempotency key once, as the journal does.
fn handler(
    inbound: mpsc::UnboundedSender<Inbound>,
    accepted: Arc<AtomicUsize>,
    rejection: Arc<Mutex<Option<Error>>>,
    keys: Keys,
) -> MessageHandler {
    Arc::new(move |message: Inbound| {
        let outcome = rejection.lock().unwrap().take().map_or(Ok(()), Err);
        if outcome.is_ok() {
            let receipt = Arc::clone(message.receipt.as_ref().unwrap());
            let id = MessageId::from(format!("m{}", accepted.load(Ordering::SeqCst)));
            let known = receipt
                .idempotency_key()
                .and_then(|key| keys.lock().unwrap().get(key).cloned());
            receipt.accept(known.as_ref().unwrap_or(&id), known.is_some());
            if known.is_none() {
                accepted.fetch_add(1, Ordering::SeqCst);
                keys.lock()
                    .unwrap()
                    .extend(receipt.idempotency_key().map(|key| (key.to_owned(), id)));
                inbound.send(message).unwrap();
            }
        }
        Box::pin(std::future::ready(outcome))
    })
}

/// A client connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: String,
}

impl Client {
    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until a text arrives. Returns everything that was read so far.
    pub(crate) async fn until(&mut self, text: &str) -> &str {
        let mut buffer = [0; 4096];
        while !self.received.contains(text) {
            let count = self.stream.read(&mut buffer).await.unwrap();
            assert!(
                count > 0,
                "the connection ended before {text:?}: {}",
                self.received
            );
            self.received
                .push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        &self.received
    }

    /// Reads until the connection ends.
    pub(crate) async fn finish(&mut self) -> HttpAnswer {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        self.received.push_str(std::str::from_utf8(&rest).unwrap());
        let (head, body) = self.received.split_once("\r\n\r\n").expect("a response");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpAnswer {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Returns the status and the error code.
    pub(crate) fn problem(&self) -> (u16, String) {
        let error = self.json()["error"].clone();
        assert!(!error["message"].as_str().unwrap().is_empty());
        (self.status, error["code"].as_str().unwrap().to_owned())
    }
}
