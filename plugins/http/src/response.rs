//! JSON responses with a status code. Errors are `{"error": {"code", "message"}}`.

use std::time::Duration;

use bub::kernel::{HttpBody, RouteResponse};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// A request that failed, with its status, code and message.
#[derive(Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    code: &'static str,
    message: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            headers: Vec::new(),
        }
    }

    /// Adds the header `Retry-After`.
    pub(crate) fn with_retry_after(self, delay: Duration) -> Self {
        let seconds = delay.as_secs().max(1);
        self.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message}})
    }

    pub(crate) fn into_response(self) -> RouteResponse {
        let mut response = json_response(self.status, &self.to_json());
        response.headers_mut().extend(self.headers);
        response
    }
}

/// Builds a JSON response.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> RouteResponse {
    json_response_with_callback(status, body, || ())
}

/// Builds a JSON response that calls `on_write` when the body is sent. The closure is dropped with the body.
pub(crate) fn json_response_with_callback(
    status: StatusCode,
    body: &Value,
    on_write: impl Fn() + Send + 'static,
) -> RouteResponse {
    let mut bytes = body.to_string().into_bytes();
    bytes.push(b'\n');
    let length = HeaderValue::from(bytes.len());
    // hyper requests a frame when it writes to the connection.
    let body = Full::new(Bytes::from(bytes)).map_frame(move |frame| {
        on_write();
        frame
    });
    let mut response = Response::new(HttpBody::new(body));
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
