//! Streams a reply as server-sent events: `accepted`, then `text` and `approval` events, then `final` or `error`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bub::kernel::{HttpBody, RouteResponse};
use futures_util::stream;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::{
    OwnedSemaphorePermit,
    broadcast::{self, error::RecvError},
};
use tokio_util::sync::CancellationToken;

use super::{
    exchange::{Exchange, ExchangeStatus, ExchangeStore, WaiterGuard},
    response::exchange_json,
};

/// A client that reads the reply to one message as a stream.
pub(super) struct EventStream {
    pub(super) exchange: Arc<Exchange>,
    pub(super) exchanges: Arc<ExchangeStore>,
    pub(super) deltas: broadcast::Receiver<String>,
    pub(super) keep_alive: Duration,
    pub(super) stop: CancellationToken,
    /// Number of replies that have already been checked for being an approval question.
    pub(super) checked: usize,
    /// Held while the stream is open. The guard counts this client as waiting, and the permit limits the number of
    /// waiting requests.
    pub(super) guards: (WaiterGuard, OwnedSemaphorePermit),
}

enum StreamStage {
    Accepted,
    Running,
    Ended,
}

impl EventStream {
    pub(super) fn into_response(self) -> RouteResponse {
        let frames = stream::unfold(
            (self, StreamStage::Accepted),
            |(mut events, stage)| async move {
                let (text, stage) = match stage {
                    StreamStage::Accepted => {
                        let accepted =
                            exchange_json(events.exchange.id(), &ExchangeStatus::Pending);
                        (format_event("accepted", &accepted), StreamStage::Running)
                    }
                    StreamStage::Running => events.next_event().await,
                    StreamStage::Ended => return None,
                };
                Some((Ok::<_, Infallible>(text), (events, stage)))
            },
        );
        let mut response = Response::new(HttpBody::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    async fn next_event(&mut self) -> (String, StreamStage) {
        let mut is_open = true;
        let mut outbounds = self.exchange.watch_replies();
        loop {
            tokio::select! {
                biased;
                delta = self.deltas.recv(), if is_open => match delta {
                    Ok(delta) => return (format_event("text", &json!({"delta": delta})), StreamStage::Running),
                    // The final event has the complete text, so a slow reader loses nothing.
                    Err(RecvError::Lagged(count)) => return (format!(": {count} deltas skipped\n\n"), StreamStage::Running),
                    Err(RecvError::Closed) => is_open = false,
                },
                status = self.exchanges.wait_for_answer(&self.exchange) => {
                    self.guards.0.mark_written(&status);
                    return (self.final_event(&status), StreamStage::Ended);
                }
                Ok(all) = outbounds.wait_for(|all| all.len() > self.checked) => {
                    let question = all.get(self.checked).filter(|outbound| outbound.is_question()).cloned();
                    drop(all);
                    self.checked += 1;
                    if let Some(question) = question {
                        return (format_event("approval", question.value()), StreamStage::Running);
                    }
                }
                () = self.stop.cancelled() => return (self.final_event(&ExchangeStatus::Pending), StreamStage::Ended),
                () = tokio::time::sleep(self.keep_alive) => return (": keep-alive\n\n".to_owned(), StreamStage::Running),
            }
        }
    }

    fn final_event(&self, status: &ExchangeStatus) -> String {
        let data = exchange_json(self.exchange.id(), status);
        let name = if data.get("error").is_some() {
            "error"
        } else {
            "final"
        };
        format_event(name, &data)
    }
}

/// Formats an event. The data fits on one line, because encoded JSON contains no line breaks.
fn format_event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
