//! Responses of the server: JSON with a status code. Errors are `{"error": {"code", "message"}}`.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};

use super::exchange::{ExchangeReply, ExchangeStatus, WaiterGuard};

/// A response of the server.
pub(super) type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A request that failed, with its status, code and message.
#[derive(Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    code: &'static str,
    message: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            headers: Vec::new(),
        }
    }

    /// Adds the header `Retry-After`.
    pub(super) fn with_retry_after(self, delay: Duration) -> Self {
        let seconds = delay.as_secs().max(1);
        self.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message}})
    }

    pub(super) fn into_response(self) -> HttpResponse {
        let mut response = json_response(self.status, &self.to_json());
        response.headers_mut().extend(self.headers);
        response
    }
}

/// Builds a JSON response.
pub(super) fn json_response(status: StatusCode, body: &Value) -> HttpResponse {
    json_response_with_callback(status, body, || ())
}

/// Builds the response about an exchange. The request counts as waiting until the response is written.
pub(super) fn status_response(
    id: &str,
    exchange_status: &ExchangeStatus,
    waiter: Option<WaiterGuard>,
) -> HttpResponse {
    let status = match exchange_status {
        ExchangeStatus::Pending => StatusCode::ACCEPTED,
        ExchangeStatus::Answered(outbounds) if failure_notice(outbounds).is_some() => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ExchangeStatus::Answered(_) | ExchangeStatus::Delivered | ExchangeStatus::Dropped(_) => {
            StatusCode::OK
        }
    };
    let (body, exchange_status) = (exchange_json(id, exchange_status), exchange_status.clone());
    json_response_with_callback(status, &body, move || {
        if let Some(waiter) = &waiter {
            waiter.mark_written(&exchange_status);
        }
    })
}

/// Describes an exchange as JSON.
pub(super) fn exchange_json(id: &str, exchange_status: &ExchangeStatus) -> Value {
    let outbounds = match exchange_status {
        ExchangeStatus::Pending => return json!({"id": id, "status": "accepted"}),
        ExchangeStatus::Delivered => return json!({"id": id, "status": "delivered"}),
        ExchangeStatus::Dropped(reason) => {
            return json!({"id": id, "status": "dropped", "reason": reason});
        }
        ExchangeStatus::Answered(outbounds) => outbounds,
    };
    let values: Vec<_> = outbounds.iter().map(ExchangeReply::value).collect();
    if let Some(failure) = failure_notice(outbounds) {
        let error = json!({"code": "turn_failed", "message": failure.content()});
        return json!({"id": id, "status": "failed", "error": error, "outbounds": values});
    }
    let is_answer = |outbound: &&ExchangeReply| !outbound.is_question();
    let reply: Vec<_> = outbounds
        .iter()
        .filter(is_answer)
        .map(ExchangeReply::content)
        .collect();
    json!({"id": id, "status": "answered", "reply": reply.join("\n"), "outbounds": values})
}

/// Returns the failure notice of a turn, which is the last reply and has the kind `error`.
fn failure_notice(outbounds: &[ExchangeReply]) -> Option<&ExchangeReply> {
    outbounds.last().filter(|outbound| outbound.is_error())
}

/// Builds a JSON response that calls `on_write` when the body is sent. The closure is dropped with the body.
fn json_response_with_callback(
    status: StatusCode,
    body: &Value,
    on_write: impl Fn() + Send + 'static,
) -> HttpResponse {
    let mut bytes = body.to_string().into_bytes();
    bytes.push(b'\n');
    let length = HeaderValue::from(bytes.len());
    // hyper requests a frame when it writes to the connection.
    let body = Full::new(Bytes::from(bytes)).map_frame(move |frame| {
        on_write();
        frame
    });
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length);
    response
}
