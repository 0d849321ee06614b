//! One attempt of a model call: sends the request and reads the events.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use tokio::time::{Instant, timeout};

use super::body::ResponseBody;
use super::retry_after::parse_retry_after;
use super::transport::request_error;
use super::{CallOptions, Inner};
use crate::classify::classify;
use crate::error::{ModelError, RecoveryAction, Result};
use crate::{ChatRequest, Endpoint, HttpRequest, ModelEvent, StreamDecoder, WireFormat};

/// Maximum bytes read of an error body. The message is at its beginning.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// Timeout for reading an error body.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for reading the rest of a finished response, so that its connection can be reused.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum time without data after the finish reason. Only usage and an end marker follow it.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream of only comments and pings times out after this number of idle timeouts. Some providers send comments and
/// pings while a request is queued, which can take minutes.
const KEEP_ALIVE_IDLE_FACTOR: u32 = 5;

/// A response that is being read.
pub(crate) struct Attempt {
    body: ResponseBody,
    decoder: StreamDecoder,
    decoded: Vec<ModelEvent>,
    /// Current maximum time without data.
    wait_timeout: Duration,
    /// Maximum time without data after the first event.
    idle_timeout: Duration,
    /// Maximum time without data after the finish reason.
    finish_timeout: Duration,
    /// Time spent waiting for the server since the last event. The time of a slow consumer does not count.
    waited: Duration,
}

impl Attempt {
    /// Sends the request and waits for the status and headers of the response.
    pub(crate) async fn open(
        inner: &Inner,
        endpoint: &Endpoint,
        request: &ChatRequest,
        options: &CallOptions,
    ) -> Result<Self> {
        let encoded = endpoint.wire.encode(request, &endpoint.quirks);
        let url = request_url(endpoint, &encoded)?;
        let headers = request_headers(endpoint, &encoded, request.stream)?;
        let client = inner.http.client(&url).await?;
        let proxy = inner.http.options().proxies.host_for(&url);
        let sending = client.post(url).headers(headers).body(encoded.body).send();
        let wait_timeout = options.first_event_timeout(request);
        let started = Instant::now();
        let response = timeout(wait_timeout, sending)
            .await
            .map_err(|_| idle_timeout_error(wait_timeout))?
            .map_err(|error| request_error(&error, endpoint.base_url.as_str(), proxy.as_deref()))?;
        if !response.status().is_success() {
            return Err(response_error(response).await);
        }
        Ok(Self {
            body: ResponseBody::new(response)?,
            decoder: endpoint.wire.decoder(&endpoint.quirks),
            decoded: Vec::new(),
            wait_timeout,
            idle_timeout: options.idle_timeout,
            finish_timeout: match endpoint.wire {
                // This format has no end marker, and every event may contain a finish reason.
                WireFormat::GenerateContent => options.idle_timeout,
                _ => FINISH_TIMEOUT,
            },
            waited: started.elapsed(),
        })
    }

    /// Reads one chunk and appends the decoded events to `events`. On an error, events before the error are appended
    /// too. Returns whether the answer is complete.
    pub(crate) async fn read_events(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<bool> {
        let result = self.read_chunk().await;
        if !self.decoded.is_empty() {
            self.waited = Duration::ZERO;
            self.wait_timeout = self.idle_timeout;
        }
        events.extend(self.decoded.drain(..));
        result
    }

    async fn read_chunk(&mut self) -> Result<bool> {
        let finished = self.decoder.has_finish_reason();
        let keep_alive_timeout = self.wait_timeout.saturating_mul(KEEP_ALIVE_IDLE_FACTOR);
        let mut wait_timeout = keep_alive_timeout.saturating_sub(self.waited);
        wait_timeout = wait_timeout.min(self.wait_timeout);
        if finished {
            wait_timeout = wait_timeout.min(self.finish_timeout);
        }
        let started = Instant::now();
        let read = timeout(wait_timeout, self.body.next_chunk()).await;
        self.waited += started.elapsed();
        match read {
            Ok(Ok(Some(chunk))) => {
                self.decoder.push(&chunk, &mut self.decoded)?;
                Ok(self.decoder.is_done())
            }
            Ok(Ok(None)) => self.finish(),
            // The answer is complete, so the connection error does not matter.
            Err(_) | Ok(Err(_)) if finished => self.finish(),
            Ok(Err(error)) => Err(error),
            Err(_) if self.waited >= keep_alive_timeout => {
                Err(keep_alive_timeout_error(keep_alive_timeout))
            }
            Err(_) => Err(idle_timeout_error(self.wait_timeout)),
        }
    }

    fn finish(&mut self) -> Result<bool> {
        self.decoder.finish(&mut self.decoded)?;
        Ok(true)
    }

    /// Reads and discards the data after the end marker, because a connection can be reused only if its response was
    /// read completely.
    pub(crate) async fn drain(mut self) {
        read_limited(&mut self.body, MAX_ERROR_BODY_BYTES, CLOSE_TIMEOUT).await;
    }
}

fn request_url(endpoint: &Endpoint, request: &HttpRequest) -> Result<Url> {
    Url::parse(&format!("{}{}", endpoint.base_url, request.path)).map_err(|_| {
        ModelError::setup(format!(
            "invalid base URL {}: check `api_base` or the base URL of the provider",
            endpoint.base_url
        ))
    })
}

fn request_headers(endpoint: &Endpoint, request: &HttpRequest, stream: bool) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let accept = if stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    // Compression would delay events.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let required = request
        .headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()));
    let configured = endpoint
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()));
    for (name, value) in required.chain(configured) {
        let invalid_header_error = || {
            let message = format!(
                "invalid header `{name}`: HTTP does not allow some of its characters; check the key and the configured headers"
            );
            ModelError::setup(message).with_action(RecoveryAction::Reauthenticate)
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid_header_error())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid_header_error())?;
        // Keep the HTTP library from logging the value.
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

/// Returns the error for a response with an error status.
async fn response_error(response: Response) -> ModelError {
    let status = response.status().as_u16();
    let wait = parse_retry_after(response.headers());
    let body = read_body_limited(response, MAX_ERROR_BODY_BYTES, ERROR_BODY_TIMEOUT).await;
    classify(Some(status), wait, &body)
}

/// Reads at most `limit` bytes of a response body. Stops after `time` and returns the bytes received until then.
pub(super) async fn read_body_limited(response: Response, limit: usize, time: Duration) -> Vec<u8> {
    match ResponseBody::new(response) {
        Ok(mut body) => read_limited(&mut body, limit, time).await,
        Err(_) => Vec::new(),
    }
}

async fn read_limited(body: &mut ResponseBody, limit: usize, time: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = async {
        while bytes.len() < limit
            && let Ok(Some(chunk)) = body.next_chunk().await
        {
            let remaining = limit - bytes.len();
            bytes.extend_from_slice(chunk.get(..remaining).unwrap_or(&chunk));
        }
    };
    let _ = timeout(time, reading).await;
    bytes
}

fn idle_timeout_error(wait_timeout: Duration) -> ModelError {
    let seconds = wait_timeout.as_secs_f64().ceil();
    ModelError::timeout(format!(
        "no data from the server for {seconds} s; increase `model_idle_timeout_seconds` if the model needs longer"
    ))
}

fn keep_alive_timeout_error(wait_timeout: Duration) -> ModelError {
    ModelError::timeout(format!(
        "only keep-alive data from the server for {} s, which is 5 × `model_idle_timeout_seconds`; increase it if the model needs longer",
        wait_timeout.as_secs()
    ))
}
