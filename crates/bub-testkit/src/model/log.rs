//! Log of requests and open connections.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::format::Format;

/// A request as received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// `POST`, `GET`, …
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// Part after the `?`; empty if missing.
    pub query: String,
    /// Name (lower case) and value of each header, in the order of arrival.
    pub headers: Vec<(String, String)>,
    /// The body as sent.
    pub body: Vec<u8>,
    /// Number of the connection, counted from 0.
    pub connection: usize,
}

impl Request {
    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self
            .headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value.as_str())
    }

    /// Returns the body as JSON; `null` if it is not valid JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the wire format of the path.
    pub fn format(&self) -> Option<Format> {
        Format::from_path(&self.path)
    }

    /// Returns whether the client requested a stream.
    pub fn wants_stream(&self) -> bool {
        self.path.ends_with(":streamGenerateContent")
            || self
                .json()
                .get("stream")
                .and_then(Value::as_bool)
                .unwrap_or(false)
    }
}

/// Log of requests and connections. A change wakes the tasks that wait for one.
pub(super) struct Log {
    state: Mutex<RequestLogState>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct RequestLogState {
    requests: Vec<Request>,
    /// How many parts of the answer to each request are sent: the head, then the events.
    sent_parts: Vec<usize>,
    is_forgetful: bool,
    /// Whether each connection is open.
    open: Vec<bool>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Log {
    pub(super) fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.state().open.len()
    }

    pub(super) fn record_connection(&self) -> usize {
        let mut state = self.state();
        state.open.push(true);
        state.open.len() - 1
    }

    /// Returns the index of the request.
    pub(super) fn record_request(&self, request: Request) -> usize {
        let mut state = self.state();
        let index = state.requests.len();
        if !state.is_forgetful {
            state.requests.push(request);
            state.sent_parts.push(0);
        }
        drop(state);
        self.notify_waiters();
        index
    }

    /// Records that the head or an event of the answer to a request is sent.
    pub(super) fn record_sent_part(&self, index: usize) {
        if let Some(count) = self.state().sent_parts.get_mut(index) {
            *count += 1;
        }
        self.notify_waiters();
    }

    pub(super) fn stop_recording(&self) {
        let mut state = self.state();
        state.is_forgetful = true;
        state.requests = Vec::new();
        state.sent_parts = Vec::new();
    }

    pub(super) fn record_disconnect(&self, connection: usize) {
        if let Some(open) = self.state().open.get_mut(connection) {
            *open = false;
        }
        self.notify_waiters();
    }

    pub(super) async fn wait_request(&self, index: usize) -> Request {
        self.wait_for(|state| state.requests.get(index).cloned())
            .await
    }

    pub(super) async fn wait_sent(&self, index: usize, events: usize) {
        self.wait_for(|state| {
            let parts = state.sent_parts.get(index)?;
            (*parts > events).then_some(())
        })
        .await;
    }

    pub(super) async fn wait_closed(&self, connection: usize) {
        self.wait_for(|state| (state.open.get(connection) == Some(&false)).then_some(()))
            .await;
    }

    /// Waits until `condition` returns a value.
    async fn wait_for<T>(&self, condition: impl Fn(&RequestLogState) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            let value = condition(&self.state());
            if let Some(value) = value {
                return value;
            }
            // The sender lives as long as the log, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    fn notify_waiters(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, RequestLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
