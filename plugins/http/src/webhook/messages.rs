//! The routes of the webhook: posting a message, and asking for its replies later.

use std::sync::Arc;

use bub::kernel::{
    Error, ErrorKind, HttpRoute, MessageHandler, Result, Role, RouteAccess, RouteRequest,
    RouteResponse,
};
use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    events::EventStream,
    exchange::{Exchange, ExchangeRequest, ExchangeStatus, ExchangeStore},
    options::WebhookOptions,
    request::{ReplyMode, Submission},
    response::status_response,
};
use crate::{
    response::{HttpError, json_response},
    route_table::RETRY_AFTER,
};

/// The data that the routes of the webhook share.
pub(super) struct MessageApi {
    pub(super) options: Arc<WebhookOptions>,
    pub(super) handler: MessageHandler,
    pub(super) exchanges: Arc<ExchangeStore>,
    /// Permits for requests that wait for a reply.
    pub(super) waiting: Arc<Semaphore>,
}

impl MessageApi {
    /// Returns the routes of the webhook.
    pub(super) fn routes(self: Arc<Self>) -> [HttpRoute; 3] {
        // Every client with the token has access, also if `webhook.role` is `guest`.
        let access = RouteAccess::Role(Role::Guest);
        let post = {
            let api = Arc::clone(&self);
            move |request| Arc::clone(&api).handle_post(request)
        };
        let status = move |request: RouteRequest| {
            let response = self.handle_status(request.param("id").unwrap_or_default());
            std::future::ready(Ok(response.unwrap_or_else(HttpError::into_response)))
        };
        let health = |_| {
            let response = json_response(StatusCode::OK, &json!({"status": "ok"}));
            std::future::ready(Ok(response))
        };
        [
            HttpRoute::new(Method::POST, "/v1/messages", access, post),
            HttpRoute::new(Method::GET, "/v1/messages/{*id}", access, status),
            HttpRoute::new(Method::GET, "/healthz", RouteAccess::Public, health),
        ]
    }

    /// Handles `GET /v1/messages/{id}`.
    fn handle_status(&self, id: &str) -> Result<RouteResponse, HttpError> {
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
    async fn handle_post(self: Arc<Self>, mut request: RouteRequest) -> Result<RouteResponse> {
        let bytes = request.read_body().await?;
        let submission = Submission::parse(&bytes, request.headers(), &self.options);
        drop(bytes);
        let response = match submission {
            Ok(submission) => self.submit(submission, &request.stop).await,
            Err(error) => Err(error),
        };
        Ok(response.unwrap_or_else(HttpError::into_response))
    }

    async fn submit(
        &self,
        submission: Submission,
        stop: &CancellationToken,
    ) -> Result<RouteResponse, HttpError> {
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
            let (exchanges, stop) = (Arc::clone(&self.exchanges), stop.clone());
            let keep_alive = self.options.keep_alive;
            let guards = (waiting, permit);
            return Ok(EventStream {
                exchange,
                exchanges,
                deltas,
                keep_alive,
                stop,
                checked: 0,
                guards,
            }
            .into_response());
        }
        let status = self.wait_for_status(&exchange, stop).await;
        Ok(status_response(id, &status, Some(waiting)))
    }

    async fn wait_for_status(
        &self,
        exchange: &Arc<Exchange>,
        stop: &CancellationToken,
    ) -> ExchangeStatus {
        tokio::select! {
            biased;
            status = self.exchanges.wait_for_answer(exchange) => status,
            () = stop.cancelled() => ExchangeStatus::Pending,
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
