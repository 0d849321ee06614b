//! One try of one call: request out, events in.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use tokio::time::{Instant, timeout};

use super::body::Body;
use super::retry_after::retry_after;
use super::transport::unreachable;
use super::{CallOptions, Inner};
use crate::classify::classify;
use crate::error::{Action, ErrorKind, ModelError};
use crate::{ChatRequest, Endpoint, HttpRequest, ModelEvent, StreamDecoder, Wire};

/// Of an error body no more than this is read: what it says stands at its beginning.
const ERROR_BODY_LIMIT: usize = 64 * 1024;

/// How long the rest of an error body is waited for.
const TAIL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a finished answer is waited for to free its connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// After the finish reason only usage and an end mark follow; a server that holds them back is not waited for.
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// Comments and pings show that somebody is there, not that an answer will come: they are borne for this many idle
/// timeouts. Routers send them while a request waits in a queue, for minutes at busy times.
const KEPT_ALIVE: u32 = 5;

/// An answer that is being read.
pub(crate) struct Attempt {
    body: Body,
    decoder: StreamDecoder,
    decoded: Vec<ModelEvent>,
    /// The silence that is borne now.
    patience: Duration,
    /// The silence that is borne after the first event.
    idle_timeout: Duration,
    /// The silence that is borne after the finish reason.
    after_finish: Duration,
    /// Time spent waiting since the last event; that of a slow reader does not count.
    waited: Duration,
}

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

impl Attempt {
    /// Sends the request and waits for the head of the answer.
    pub(crate) async fn open(
        inner: &Inner,
        endpoint: &Endpoint,
        request: &ChatRequest,
        options: &CallOptions,
    ) -> Result<Self, ModelError> {
        let encoded = endpoint.wire.encode(request, &endpoint.quirks);
        let url = url(endpoint, &encoded)?;
        let headers = headers(endpoint, &encoded, request.stream)?;
        let client = inner.http.client(&url).await?;
        let proxy = inner.http.options().proxies.host_for(&url);
        let sending = client.post(url).headers(headers).body(encoded.body).send();
        let patience = options.patience(request);
        let started = Instant::now();
        let response = match timeout(patience, sending).await {
            Err(_) => return Err(silent(patience)),
            Ok(Err(error)) => {
                return Err(unreachable(
                    &error,
                    endpoint.base_url.as_str(),
                    proxy.as_deref(),
                ));
            }
            Ok(Ok(response)) => response,
        };
        if !response.status().is_success() {
            return Err(refused(response, endpoint).await);
        }
        Ok(Self {
            body: Body::new(response)?,
            decoder: endpoint.wire.decoder(&endpoint.quirks),
            decoded: Vec::new(),
            patience,
            idle_timeout: options.idle_timeout,
            after_finish: match endpoint.wire {
                // Without an end mark the reason may stand in every event of the stream.
                Wire::GenerateContent => options.idle_timeout,
                _ => AFTER_FINISH,
            },
            waited: started.elapsed(),
        })
    }

    /// Reads once and appends what came to `events`, also when it ends in an error.
    pub(crate) async fn read(
        &mut self,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<Progress, ModelError> {
        let result = self.read_chunk().await;
        if !self.decoded.is_empty() {
            self.waited = Duration::ZERO;
            self.patience = self.idle_timeout;
        }
        events.extend(self.decoded.drain(..));
        result
    }

    async fn read_chunk(&mut self) -> Result<Progress, ModelError> {
        let finished = self.decoder.has_finish();
        let kept_alive = self.patience.saturating_mul(KEPT_ALIVE);
        let patience = self.patience.min(kept_alive.saturating_sub(self.waited));
        let patience = if finished {
            self.after_finish.min(patience)
        } else {
            patience
        };
        let started = Instant::now();
        let read = timeout(patience, self.body.chunk()).await;
        self.waited += started.elapsed();
        match read {
            Ok(Ok(Some(chunk))) => {
                self.decoder.push(&chunk, &mut self.decoded)?;
                Ok(if self.decoder.is_done() {
                    Progress::Done
                } else {
                    Progress::More
                })
            }
            Ok(Ok(None)) => self.end(),
            // The answer is whole, whatever became of the connection.
            Err(_) | Ok(Err(_)) if finished => self.end(),
            Ok(Err(error)) => Err(error),
            Err(_) if self.waited >= kept_alive => Err(kept_waiting(kept_alive)),
            Err(_) => Err(silent(self.patience)),
        }
    }

    fn end(&mut self) -> Result<Progress, ModelError> {
        self.decoder.finish(&mut self.decoded)?;
        Ok(Progress::Done)
    }

    /// Reads what follows the end mark, because only a connection that was read to its end is used again.
    pub(crate) async fn close(mut self) {
        let rest = async {
            let mut budget = ERROR_BODY_LIMIT;
            while let Ok(Some(chunk)) = self.body.chunk().await {
                match budget.checked_sub(chunk.len()) {
                    Some(left) => budget = left,
                    None => return,
                }
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, rest).await;
    }
}

fn url(endpoint: &Endpoint, request: &HttpRequest) -> Result<Url, ModelError> {
    Url::parse(&format!("{}{}", endpoint.base_url, request.path)).map_err(|_| {
        ModelError::new(
            ErrorKind::Setup,
            Action::GiveUp,
            "the address of the provider is no URL",
        )
    })
}

fn headers(
    endpoint: &Endpoint,
    request: &HttpRequest,
    stream: bool,
) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    let accept = if stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    // Compressed events come late.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let own = request
        .headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()));
    let given = endpoint
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()));
    for (name, value) in own.chain(given) {
        let bad = || {
            let message = format!("the header `{name}` has characters that no header may have");
            ModelError::new(ErrorKind::Setup, Action::Reauthenticate, message)
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        // Nobody below us may print it.
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}

/// The error of an answer with a bad status.
async fn refused(response: Response, endpoint: &Endpoint) -> ModelError {
    let status = response.status().as_u16();
    let wait = retry_after(response.headers());
    let body = read_limited(response, ERROR_BODY_LIMIT, TAIL_TIMEOUT).await;
    classify(Some(status), wait, &body, endpoint.wire)
}

/// The beginning of a body, as far as it comes in time.
pub(super) async fn read_limited(response: Response, limit: usize, time: Duration) -> Vec<u8> {
    let mut body = Vec::new();
    let Ok(mut packed) = Body::new(response) else {
        return body;
    };
    let reading = async {
        while let Ok(Some(chunk)) = packed.chunk().await {
            let room = limit.saturating_sub(body.len());
            body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            if body.len() >= limit {
                return;
            }
        }
    };
    let _ = timeout(time, reading).await;
    body
}

fn silent(patience: Duration) -> ModelError {
    let seconds = patience.as_secs_f64().ceil();
    let message =
        format!("nothing came from the server for {seconds} s (`model_idle_timeout_seconds`)");
    ModelError::new(ErrorKind::Timeout, Action::Retry, message)
}

fn kept_waiting(patience: Duration) -> ModelError {
    let message = format!(
        "the server keeps the connection alive and has said nothing for {} s",
        patience.as_secs()
    );
    ModelError::new(ErrorKind::Timeout, Action::Retry, message)
}
