//! The answer as server-sent events: `accepted`, `text` and questions for approval as they come, then `final` or `error`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::sync::{
    OwnedSemaphorePermit,
    broadcast::{self, error::RecvError},
};
use tokio_util::sync::CancellationToken;

use super::{
    exchange::{Exchange, ExchangeStatus, ExchangeStore, WaiterGuard},
    response::{HttpResponse, describe},
};

/// A reader of one answer.
pub(super) struct EventStream {
    pub(super) exchange: Arc<Exchange>,
    pub(super) exchanges: Arc<ExchangeStore>,
    pub(super) deltas: broadcast::Receiver<String>,
    pub(super) keep_alive: Duration,
    pub(super) hurry: CancellationToken,
    /// How many replies were looked at.
    pub(super) seen: usize,
    /// Held while there is a reader.
    pub(super) held: (WaiterGuard, OwnedSemaphorePermit),
}

enum StreamStage {
    Accepted,
    Growing,
    Ended,
}

impl EventStream {
    pub(super) fn answer(self) -> HttpResponse {
        let frames = stream::unfold(
            (self, StreamStage::Accepted),
            |(mut events, stage)| async move {
                let (text, stage) = match stage {
                    StreamStage::Accepted => {
                        let accepted = describe(events.exchange.id(), &ExchangeStatus::Pending);
                        (event("accepted", &accepted), StreamStage::Growing)
                    }
                    StreamStage::Growing => events.next().await,
                    StreamStage::Ended => return None,
                };
                Some((
                    Ok::<_, Infallible>(Frame::data(Bytes::from(text))),
                    (events, stage),
                ))
            },
        );
        let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
        let headers = answer.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    async fn next(&mut self) -> (String, StreamStage) {
        let mut is_growing = true;
        let mut outbounds = self.exchange.outbounds();
        loop {
            tokio::select! {
                biased;
                delta = self.deltas.recv(), if is_growing => match delta {
                    Ok(delta) => return (event("text", &json!({"delta": delta})), StreamStage::Growing),
                    // The final event has the whole text, so a slow reader loses nothing for good.
                    Err(RecvError::Lagged(count)) => return (format!(": {count} pieces left out\n\n"), StreamStage::Growing),
                    Err(RecvError::Closed) => is_growing = false,
                },
                progress = self.exchanges.wait_answered(&self.exchange) => {
                    self.held.0.write(&progress);
                    return (self.last(&progress), StreamStage::Ended);
                }
                Ok(all) = outbounds.wait_for(|all| all.len() > self.seen) => {
                    let question = all.get(self.seen).filter(|outbound| outbound.is_question()).cloned();
                    drop(all);
                    self.seen += 1;
                    if let Some(question) = question {
                        return (event("approval", question.value()), StreamStage::Growing);
                    }
                }
                () = self.hurry.cancelled() => return (self.last(&ExchangeStatus::Pending), StreamStage::Ended),
                () = tokio::time::sleep(self.keep_alive) => return (": keep-alive\n\n".to_owned(), StreamStage::Growing),
            }
        }
    }

    fn last(&self, progress: &ExchangeStatus) -> String {
        let data = describe(self.exchange.id(), progress);
        let name = if data.get("error").is_some() {
            "error"
        } else {
            "final"
        };
        event(name, &data)
    }
}

/// JSON has no line breaks of its own, so one line of data is enough.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
