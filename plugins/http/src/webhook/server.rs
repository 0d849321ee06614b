//! The socket: connections, their limits, and what each path does.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bub::kernel::{Error, ErrorKind, MessageHandler, Result};
use bub::settings::Secret;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request::Parts};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::{hmac, rand::SystemRandom};
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    events::EventStream,
    exchange::{Exchange, ExchangeRequest, ExchangeStatus, ExchangeStore},
    options::WebhookOptions,
    request::{ReplyMode, Submission},
    response::{HttpError, HttpResponse, plain, status_response},
};

const MESSAGES_PATH: &str = "/v1/messages";
const HEALTH_PATH: &str = "/healthz";
/// The head of a request may be this long; more is answered with 431.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How often what is too old is forgotten when nothing happens.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// How long to wait when no connection can be accepted, for example because there are too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// When to come again, when there is too much to do.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How many clients at one time are told that they are too many.
const MAX_REJECTED_CONNECTIONS: usize = 64;
/// Written to a connection that is one too many, without reading from it.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 85\r\n\r\n\
{\"error\": {\"code\": \"too_many_connections\", \"message\": \"too many connections; retry\"}}";

/// What all connections share.
pub(super) struct Server {
    options: Arc<WebhookOptions>,
    handler: MessageHandler,
    exchanges: Arc<ExchangeStore>,
    hurry: CancellationToken,
    verifier: TokenVerifier,
    waiting: Arc<Semaphore>,
}

/// Compares tokens in a time that says nothing about them: what is compared are their tags under a random key.
struct TokenVerifier {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl TokenVerifier {
    fn new(token: &Secret) -> Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| Error::unknown("this computer has no random numbers"))?;
        let tag = hmac::sign(&key, token.expose().as_bytes());
        Ok(Self { key, tag })
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let given = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let token = given
            .split_at_checked(7)
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        token.is_some_and(|(_, token)| {
            hmac::verify(&self.key, token.trim_ascii(), self.tag.as_ref()).is_ok()
        })
    }
}

impl Server {
    pub(super) fn new(
        options: Arc<WebhookOptions>,
        token: &Secret,
        handler: MessageHandler,
        exchanges: Arc<ExchangeStore>,
        hurry: CancellationToken,
    ) -> Result<Self> {
        let (verifier, waiting) = (
            TokenVerifier::new(token)?,
            Arc::new(Semaphore::new(options.waiting)),
        );
        Ok(Self {
            options,
            handler,
            exchanges,
            hurry,
            verifier,
            waiting,
        })
    }

    /// Accepts connections until `stop` fires, and then serves those there are to their end.
    pub(super) async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let server = Arc::new(self);
        let room = Arc::new(Semaphore::new(server.options.connections));
        let doorstep = Arc::new(Semaphore::new(MAX_REJECTED_CONNECTIONS));
        let closing = CancellationToken::new();
        let mut connections = JoinSet::new();
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = server.hurry.cancelled() => break,
                _ = sweep.tick() => server.exchanges.sweep(),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match (accepted, Arc::clone(&room).try_acquire_owned()) {
                    (Ok((stream, _)), Ok(place)) => {
                        let connection = Arc::clone(&server).serve(stream, closing.clone());
                        connections.spawn(async move {
                            connection.await;
                            drop(place);
                        });
                    }
                    (Ok((stream, _)), Err(_)) => reject_connection(stream, &doorstep),
                    (Err(error), _) => {
                        tracing::warn!(%error, "webhook.accept_failed");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
        drop(listener);
        closing.cancel();
        while connections.join_next().await.is_some() {}
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, closing: CancellationToken) {
        // Small answers must not wait for more; without it they are only later.
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(&self);
        let service = service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.request(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.read_timeout);
        builder
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(MAX_HEAD_BYTES * 2);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "webhook.connection_failed");
        }
    }

    async fn request(self: Arc<Self>, request: Request<Incoming>) -> HttpResponse {
        let (parts, mut body) = request.into_parts();
        let answer = self.route(&parts, &mut body).await;
        let mut answer = answer.unwrap_or_else(HttpError::answer);
        if !body.is_end_stream() {
            // A client that still sends would not read the answer: what it sends is taken, for a while, and forgotten.
            answer
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
            let patience = self.options.read_timeout;
            tokio::spawn(timeout(patience, async move {
                while let Some(Ok(_)) = body.frame().await {}
            }));
        }
        answer
    }

    async fn route(&self, parts: &Parts, body: &mut Incoming) -> Result<HttpResponse, HttpError> {
        let path = parts.uri.path();
        let id = path
            .strip_prefix(MESSAGES_PATH)
            .and_then(|rest| rest.strip_prefix('/'))
            .filter(|id| !id.is_empty());
        let allowed = match (path, id) {
            (MESSAGES_PATH, _) => Method::POST,
            (HEALTH_PATH, _) | (_, Some(_)) => Method::GET,
            _ => {
                return Err(HttpError::new(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "there is nothing at this path",
                ));
            }
        };
        // Load balancers like to ask for the head only.
        if parts.method != allowed && (path, &parts.method) != (HEALTH_PATH, &Method::HEAD) {
            let text = format!("use {allowed} here");
            let value =
                HeaderValue::from_str(allowed.as_str()).unwrap_or(HeaderValue::from_static("GET"));
            return Err(
                HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
                    .header(header::ALLOW, value),
            );
        }
        if path == HEALTH_PATH {
            return Ok(plain(StatusCode::OK, &json!({"status": "ok"})));
        }
        if !self.verifier.is_authorized(&parts.headers) {
            let text = "the header `Authorization: Bearer` is missing, or its token is wrong";
            return Err(
                HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", text)
                    .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            );
        }
        match id {
            Some(id) => self.get_status(id),
            None => self.post(parts, body).await,
        }
    }

    /// `GET /v1/messages/{id}`
    fn get_status(&self, id: &str) -> Result<HttpResponse, HttpError> {
        let text = "this message is unknown, or forgotten by now";
        let exchange = self.exchanges.find(id);
        let exchange = exchange
            .ok_or_else(|| HttpError::new(StatusCode::NOT_FOUND, "unknown_message", text))?;
        let mut answer = status_response(id, &self.exchanges.progress(&exchange), None);
        // It is the question about the message that is answered, not the message.
        *answer.status_mut() = StatusCode::OK;
        Ok(answer)
    }

    /// `POST /v1/messages`
    async fn post(&self, parts: &Parts, body: &mut Incoming) -> Result<HttpResponse, HttpError> {
        let bytes = self.read(body).await?;
        let submission = Submission::read(&bytes, &parts.headers, &self.options)?;
        drop(bytes);
        let permit = match submission.reply {
            ReplyMode::Sync | ReplyMode::Stream => Some(self.acquire_wait_permit()?),
            ReplyMode::Callback | ReplyMode::None => None,
        };
        let Submission {
            reply,
            callback_url,
            fingerprint,
            receipt,
            inbound,
        } = submission;
        let begun = self.exchanges.begin(ExchangeRequest {
            receipt: Arc::clone(&receipt),
            fingerprint,
            callback_url,
        });
        let waiting = permit.as_ref().map(|_| begun.exchange.wait());
        let deltas = begun.exchange.subscribe_if(reply == ReplyMode::Stream);
        // In a task: a client that goes away must not leave a message half accepted.
        let accepted = tokio::spawn((self.handler)(inbound)).await;
        let accepted = accepted.unwrap_or_else(|error| Err(Error::unknown(error.to_string())));
        accepted.map_err(|error| self.not_accepted(&error))?;
        let Some(id) = receipt.message_id() else {
            return Err(
                self.not_accepted(&Error::unknown("the message was accepted without an id"))
            );
        };
        let exchange = self.exchanges.name(&begun.exchange, id);
        if exchange.has_other_content(fingerprint) {
            let text = "another message was posted with this idempotency key";
            return Err(HttpError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                text,
            ));
        }
        let waiting = waiting.map(|own| {
            if Arc::ptr_eq(&exchange, &begun.exchange) {
                own
            } else {
                exchange.wait()
            }
        });
        let (Some(waiting), Some(permit)) = (waiting, permit) else {
            return Ok(status_response(id, &ExchangeStatus::Pending, None));
        };
        if let Some(own) = deltas {
            let deltas = if receipt.is_duplicate() {
                exchange.listen()
            } else {
                own
            };
            let (exchanges, hurry) = (Arc::clone(&self.exchanges), self.hurry.clone());
            let keep_alive = self.options.keep_alive;
            let held = (waiting, permit);
            return Ok(EventStream {
                exchange,
                exchanges,
                deltas,
                keep_alive,
                hurry,
                seen: 0,
                held,
            }
            .answer());
        }
        let progress = self.wait(&exchange).await;
        Ok(status_response(id, &progress, Some(waiting)))
    }

    async fn wait(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        tokio::select! {
            biased;
            progress = self.exchanges.wait_answered(exchange) => progress,
            () = self.hurry.cancelled() => ExchangeStatus::Pending,
            () = tokio::time::sleep(self.options.reply_timeout) => ExchangeStatus::Pending,
        }
    }

    fn acquire_wait_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| {
            let text = "too many requests wait for a reply; retry, or use `reply` callback or none";
            HttpError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_waiting", text)
                .retry_after(RETRY_AFTER)
        })
    }

    async fn read(&self, body: &mut Incoming) -> Result<Bytes, HttpError> {
        let limit = self.options.body_limit;
        let too_large = || {
            let text = format!(
                "the body has more than {limit} bytes; the setting `webhook.body_limit` is the limit"
            );
            HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
        };
        if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(too_large());
        }
        match timeout(
            self.options.read_timeout,
            Limited::new(body, limit).collect(),
        )
        .await
        {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(HttpError::new(
                StatusCode::BAD_REQUEST,
                "incomplete",
                "the body is incomplete",
            )),
            Err(_) => {
                let text = format!(
                    "the body did not come within {} s",
                    self.options.read_timeout.as_secs_f64()
                );
                Err(HttpError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "too_slow",
                    text,
                ))
            }
        }
    }

    /// The message is not on disk: the client is told to keep it.
    fn not_accepted(&self, error: &Error) -> HttpError {
        let message = self.options.redactor.redact(error.message()).into_owned();
        let (status, code) = match error.kind() {
            ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "refused"),
            ErrorKind::Temporary | ErrorKind::SessionFull => {
                (StatusCode::SERVICE_UNAVAILABLE, "busy")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "not_accepted"),
        };
        if status != StatusCode::BAD_REQUEST {
            tracing::warn!(%error, "webhook.message_rejected");
        }
        let refusal = HttpError::new(status, code, message);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            refusal.retry_after(error.retry_after().unwrap_or(RETRY_AFTER))
        } else {
            refusal
        }
    }
}

/// Tells one client too many to come again.
fn reject_connection(mut stream: TcpStream, doorstep: &Arc<Semaphore>) {
    // Whoever cannot even be told is not told.
    let Ok(place) = Arc::clone(doorstep).try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let told = async {
            stream.write_all(TOO_MANY_CONNECTIONS_RESPONSE).await?;
            stream.shutdown().await?;
            // To close with something unread would take the answer back.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        };
        let _ = timeout(RETRY_AFTER, told).await;
        drop(place);
    });
}
