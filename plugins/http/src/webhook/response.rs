//! The answers of the server: JSON with a status, and what is wrong as `{"error": {"code", "message"}}`.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};

use super::exchange::{ExchangeReply, ExchangeStatus, WaiterGuard};

/// What the server answers with.
pub(super) type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Why a request is not served.
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

    /// Says when to come again.
    pub(super) fn retry_after(self, delay: Duration) -> Self {
        let seconds = delay.as_secs().max(1);
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(super) fn body(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message}})
    }

    pub(super) fn answer(self) -> HttpResponse {
        let mut answer = plain(self.status, &self.body());
        answer.headers_mut().extend(self.headers);
        answer
    }
}

/// A JSON answer.
pub(super) fn plain(status: StatusCode, body: &Value) -> HttpResponse {
    json_answer(status, body, || ())
}

/// The answer about an exchange. Whoever waits counts as waiting until it is written.
pub(super) fn status_response(
    id: &str,
    progress: &ExchangeStatus,
    waiting: Option<WaiterGuard>,
) -> HttpResponse {
    let status = match progress {
        ExchangeStatus::Pending => StatusCode::ACCEPTED,
        ExchangeStatus::Answered(outbounds) if failure(outbounds).is_some() => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ExchangeStatus::Answered(_) | ExchangeStatus::Delivered | ExchangeStatus::Dropped(_) => {
            StatusCode::OK
        }
    };
    let (body, progress) = (describe(id, progress), progress.clone());
    json_answer(status, &body, move || {
        if let Some(waiting) = &waiting {
            waiting.write(&progress);
        }
    })
}

/// An exchange as data.
pub(super) fn describe(id: &str, progress: &ExchangeStatus) -> Value {
    let outbounds = match progress {
        ExchangeStatus::Pending => return json!({"id": id, "status": "accepted"}),
        ExchangeStatus::Delivered => return json!({"id": id, "status": "delivered"}),
        ExchangeStatus::Dropped(reason) => {
            return json!({"id": id, "status": "dropped", "reason": reason});
        }
        ExchangeStatus::Answered(outbounds) => outbounds,
    };
    let values: Vec<_> = outbounds.iter().map(ExchangeReply::value).collect();
    if let Some(failure) = failure(outbounds) {
        let error = json!({"code": "turn_failed", "message": failure.content()});
        return json!({"id": id, "status": "failed", "error": error, "outbounds": values});
    }
    let is_said = |outbound: &&ExchangeReply| !outbound.is_question();
    let reply: Vec<_> = outbounds
        .iter()
        .filter(is_said)
        .map(ExchangeReply::content)
        .collect();
    json!({"id": id, "status": "answered", "reply": reply.join("\n"), "outbounds": values})
}

/// The notice about a turn that failed, which is a reply of its own kind.
fn failure(outbounds: &[ExchangeReply]) -> Option<&ExchangeReply> {
    outbounds.last().filter(|outbound| outbound.is_error())
}

/// What `written` holds is dropped with the body.
fn json_answer(
    status: StatusCode,
    body: &Value,
    written: impl Fn() + Send + 'static,
) -> HttpResponse {
    let mut bytes = body.to_string().into_bytes();
    bytes.push(b'\n');
    let length = HeaderValue::from(bytes.len());
    // A frame is asked for when it goes to the connection.
    let body = Full::new(Bytes::from(bytes)).map_frame(move |frame| {
        written();
        frame
    });
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    answer.headers_mut().insert(header::CONTENT_LENGTH, length);
    answer
}
