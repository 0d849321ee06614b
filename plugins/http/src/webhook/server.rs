//! The HTTP server: connections, their limits, and routing.

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
    response::{HttpError, HttpResponse, json_response, status_response},
};

const MESSAGES_PATH: &str = "/v1/messages";
const HEALTH_PATH: &str = "/healthz";
/// Maximum size of a request head in bytes. A larger head is answered with 431.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// How often old exchanges are removed, even if no request arrives.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Delay after a failed accept, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Value of `Retry-After` when a limit is reached.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of connections beyond the limit that get a 503 at the same time. Further connections are closed
/// without a response.
const MAX_REJECTED_CONNECTIONS: usize = 64;
/// Response to a connection beyond the limit. It is written without reading the request.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 85\r\n\r\n\
{\"error\": {\"code\": \"too_many_connections\", \"message\": \"too many connections; retry\"}}";

/// The HTTP server: its options and the data that all connections share.
pub(super) struct Server {
    options: Arc<WebhookOptions>,
    handler: MessageHandler,
    exchanges: Arc<ExchangeStore>,
    stop_waiting: CancellationToken,
    verifier: TokenVerifier,
    waiting: Arc<Semaphore>,
}

/// Checks the token of a request. Compares HMACs under a random key instead of tokens, so that the time does not depend
/// on the token.
struct TokenVerifier {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl TokenVerifier {
    fn new(token: &Secret) -> Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| {
            Error::unknown("cannot start the webhook: the system returned no random numbers")
        })?;
        let tag = hmac::sign(&key, token.expose().as_bytes());
        Ok(Self { key, tag })
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let authorization = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let token = authorization
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
        stop_waiting: CancellationToken,
    ) -> Result<Self> {
        let (verifier, waiting) = (
            TokenVerifier::new(token)?,
            Arc::new(Semaphore::new(options.waiting)),
        );
        Ok(Self {
            options,
            handler,
            exchanges,
            stop_waiting,
            verifier,
            waiting,
        })
    }

    /// Accepts connections until `stop` is cancelled. Then finishes the open connections.
    pub(super) async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let server = Arc::new(self);
        let permits = Arc::new(Semaphore::new(server.options.connections));
        let rejections = Arc::new(Semaphore::new(MAX_REJECTED_CONNECTIONS));
        let closing = CancellationToken::new();
        let mut connections = JoinSet::new();
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = server.stop_waiting.cancelled() => break,
                _ = sweep.tick() => server.exchanges.evict_expired(),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match (accepted, Arc::clone(&permits).try_acquire_owned()) {
                    (Ok((stream, _)), Ok(permit)) => {
                        let connection = Arc::clone(&server).serve_connection(stream, closing.clone());
                        connections.spawn(async move {
                            connection.await;
                            drop(permit);
                        });
                    }
                    (Ok((stream, _)), Err(_)) => reject_connection(stream, &rejections),
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

    async fn serve_connection(self: Arc<Self>, stream: TcpStream, closing: CancellationToken) {
        // Send small responses at once. If this fails, they are only delayed.
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(&self);
        let service = service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.handle_request(request).await) }
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

    async fn handle_request(self: Arc<Self>, request: Request<Incoming>) -> HttpResponse {
        let (parts, mut body) = request.into_parts();
        let response = self.route_request(&parts, &mut body).await;
        let mut response = response.unwrap_or_else(HttpError::into_response);
        if !body.is_end_stream() {
            // A client that is still sending would not read the response, so read and discard its data for a while.
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
            let discard_timeout = self.options.read_timeout;
            tokio::spawn(timeout(discard_timeout, async move {
                while let Some(Ok(_)) = body.frame().await {}
            }));
        }
        response
    }

    async fn route_request(
        &self,
        parts: &Parts,
        body: &mut Incoming,
    ) -> Result<HttpResponse, HttpError> {
        let path = parts.uri.path();
        let id = path
            .strip_prefix(MESSAGES_PATH)
            .and_then(|path| path.strip_prefix('/'))
            .filter(|id| !id.is_empty());
        let allowed = match (path, id) {
            (MESSAGES_PATH, _) => Method::POST,
            (HEALTH_PATH, _) | (_, Some(_)) => Method::GET,
            _ => {
                return Err(HttpError::new(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    "unknown path; use `/v1/messages`, `/v1/messages/ID` or `/healthz`",
                ));
            }
        };
        // Load balancers often use HEAD.
        if parts.method != allowed && (path, &parts.method) != (HEALTH_PATH, &Method::HEAD) {
            let text = format!("method not allowed; use `{allowed}`");
            let value =
                HeaderValue::from_str(allowed.as_str()).unwrap_or(HeaderValue::from_static("GET"));
            return Err(
                HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
                    .with_header(header::ALLOW, value),
            );
        }
        if path == HEALTH_PATH {
            return Ok(json_response(StatusCode::OK, &json!({"status": "ok"})));
        }
        if !self.verifier.is_authorized(&parts.headers) {
            let text = "unauthorized: pass the token of `webhook.token` in the header `Authorization: Bearer`";
            return Err(
                HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", text)
                    .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            );
        }
        match id {
            Some(id) => self.handle_status(id),
            None => self.handle_post(parts, body).await,
        }
    }

    /// Handles `GET /v1/messages/{id}`.
    fn handle_status(&self, id: &str) -> Result<HttpResponse, HttpError> {
        let text =
            "unknown message: bub does not keep it any more, or the id is wrong; check the id";
        let exchange = self.exchanges.find_by_id(id);
        let exchange = exchange
            .ok_or_else(|| HttpError::new(StatusCode::NOT_FOUND, "unknown_message", text))?;
        let mut response = status_response(id, &self.exchanges.status(&exchange), None);
        // This request succeeded, even if the turn of the message failed.
        *response.status_mut() = StatusCode::OK;
        Ok(response)
    }

    /// Handles `POST /v1/messages`.
    async fn handle_post(
        &self,
        parts: &Parts,
        body: &mut Incoming,
    ) -> Result<HttpResponse, HttpError> {
        let bytes = self.read_body(body).await?;
        let submission = Submission::parse(&bytes, &parts.headers, &self.options)?;
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
        let pending = self.exchanges.begin(ExchangeRequest {
            receipt: Arc::clone(&receipt),
            fingerprint,
            callback_url,
        });
        let waiting = permit.as_ref().map(|_| pending.exchange.register_waiter());
        let deltas = pending
            .exchange
            .subscribe_deltas_if(reply == ReplyMode::Stream);
        // In a task, so that a client that disconnects does not interrupt the acceptance of the message.
        let accepted = tokio::spawn((self.handler)(inbound)).await;
        let accepted = accepted.unwrap_or_else(|_| {
            Err(Error::unknown(
                "cannot accept the message: internal error (panic); see the log for the panic",
            ))
        });
        accepted.map_err(|error| self.not_accepted_error(&error))?;
        let Some(id) = receipt.message_id() else {
            return Err(self.not_accepted_error(&Error::unknown(
                "cannot accept the message: the gateway returned no id; report this",
            )));
        };
        let exchange = self.exchanges.assign_id(&pending.exchange, id);
        if exchange.has_other_content(fingerprint) {
            let text = "idempotency key already used for another message; choose a new key";
            return Err(HttpError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                text,
            ));
        }
        let waiting = waiting.map(|waiter| {
            if Arc::ptr_eq(&exchange, &pending.exchange) {
                waiter
            } else {
                exchange.register_waiter()
            }
        });
        let (Some(waiting), Some(permit)) = (waiting, permit) else {
            return Ok(status_response(id, &ExchangeStatus::Pending, None));
        };
        if let Some(pending_deltas) = deltas {
            let deltas = if receipt.is_duplicate() {
                exchange.subscribe_deltas()
            } else {
                pending_deltas
            };
            let (exchanges, stop_waiting) =
                (Arc::clone(&self.exchanges), self.stop_waiting.clone());
            let keep_alive = self.options.keep_alive;
            let guards = (waiting, permit);
            return Ok(EventStream {
                exchange,
                exchanges,
                deltas,
                keep_alive,
                stop_waiting,
                checked: 0,
                guards,
            }
            .into_response());
        }
        let status = self.wait_for_status(&exchange).await;
        Ok(status_response(id, &status, Some(waiting)))
    }

    async fn wait_for_status(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        tokio::select! {
            biased;
            status = self.exchanges.wait_for_answer(exchange) => status,
            () = self.stop_waiting.cancelled() => ExchangeStatus::Pending,
            () = tokio::time::sleep(self.options.reply_timeout) => ExchangeStatus::Pending,
        }
    }

    fn acquire_wait_permit(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| {
            let text =
                "too many requests wait for a reply; retry later, or set `reply` to `callback` or `none`";
            HttpError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_waiting", text)
                .with_retry_after(RETRY_AFTER)
        })
    }

    async fn read_body(&self, body: &mut Incoming) -> Result<Bytes, HttpError> {
        let limit = self.options.body_limit;
        let too_large_error = || {
            let text = format!(
                "body too large: it has more than {limit} bytes; the owner can raise `webhook.body_limit`"
            );
            HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
        };
        if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
            return Err(too_large_error());
        }
        match timeout(
            self.options.read_timeout,
            Limited::new(body, limit).collect(),
        )
        .await
        {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large_error()),
            Ok(Err(_)) => Err(HttpError::new(
                StatusCode::BAD_REQUEST,
                "incomplete",
                "incomplete body: the connection ended early; send the request again",
            )),
            Err(_) => {
                let text = format!(
                    "body not received within {} s; send the request again",
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

    /// Builds the error for a message that was not accepted. The client must keep the message and may send it again.
    fn not_accepted_error(&self, error: &Error) -> HttpError {
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
        let http_error = HttpError::new(status, code, message);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            http_error.with_retry_after(error.retry_after().unwrap_or(RETRY_AFTER))
        } else {
            http_error
        }
    }
}

/// Sends a 503 response to a connection beyond the limit, so that the client retries.
fn reject_connection(mut stream: TcpStream, rejections: &Arc<Semaphore>) {
    // Without a permit, the connection is closed without a response.
    let Ok(permit) = Arc::clone(rejections).try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let respond = async {
            stream.write_all(TOO_MANY_CONNECTIONS_RESPONSE).await?;
            stream.shutdown().await?;
            // Closing a socket with unread data would discard the response.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        };
        let _ = timeout(RETRY_AFTER, respond).await;
        drop(permit);
    });
}
