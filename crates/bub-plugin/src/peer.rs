//! One end of a JSON-RPC 2.0 connection with one message per line. Host and plugin use the same code.
//!
//! One thread reads and one thread writes. A synchronous hook blocks its thread until the response arrives, so the
//! connection must not depend on a free async runtime.

mod lines;
mod outgoing;

use std::{
    collections::HashMap,
    io::{Read, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc as blocking,
    },
    time::{Duration, Instant},
};

use bub_kernel::{CancellationToken, Error, ErrorKind, Result};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

pub use self::lines::read_for_fuzzing;
pub(crate) use self::outgoing::{IncomingReceiver, OutgoingRequest};
use self::{
    lines::{read_lines, write_lines},
    outgoing::{Backlog, ResponseSink, Waiter},
};
use crate::rpc_message::{self, PartialRpcMessage, RpcMessage};

/// Maximum length of a message in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of the unread events of one stream in bytes.
const MAX_UNREAD_BYTES: usize = 32 * 1024 * 1024;
/// Maximum total size of unwritten messages in bytes. A larger backlog closes the connection.
const MAX_UNWRITTEN_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of unanswered requests from the other side. Also the maximum number of questions about one call that
/// wait in its queue.
const MAX_PENDING_REQUESTS: usize = 256;

/// A message from the other side that belongs to a request of this side.
#[derive(Debug)]
pub(crate) enum IncomingMessage {
    /// The response. It ends the request.
    Response(Result<Value>),
    /// An event, if the request is answered with a stream.
    Event(Value),
    /// A request from the other side about the request of this side.
    Question {
        id: Value,
        method: String,
        params: Value,
    },
}

/// Handles requests and notifications from the other side.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Handles a request from the other side that is not about a request of this side. Answers it with
    /// [`Peer::respond`].
    fn handle_request(&self, peer: &Arc<Peer>, id: Value, method: &str, params: Value);

    /// Handles a notification from the other side.
    fn handle_notification(&self, method: &str, params: &Value);

    /// Handles the end of the connection. The peer calls it once.
    fn handle_close(&self, peer: &Peer, cause: &str);
}

/// One end of a connection.
pub(crate) struct Peer {
    name: String,
    unwritten: AtomicUsize,
    /// Lines for the writing thread. The channel is unbounded, because the reading thread and async tasks must not block:
    /// otherwise, both sides could wait for each other to read. [`MAX_UNWRITTEN_BYTES`] limits its size. An open
    /// connection never drops a line.
    outgoing: Mutex<Option<blocking::Sender<Vec<u8>>>>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// Unanswered requests from the other side. The key is the JSON text of the id.
    served: Mutex<HashMap<String, ServedRequest>>,
    /// Number of responses and events that may still arrive for cancelled requests.
    expected_late: AtomicUsize,
    is_closed: AtomicBool,
    cause: Mutex<Option<String>>,
}

/// An unanswered request from the other side.
#[derive(Clone)]
pub(crate) struct ServedRequest {
    /// Cancelled when the other side cancels the request.
    pub(crate) cancel: CancellationToken,
    /// Number of events that the other side can still receive.
    pub(crate) credits: Arc<Semaphore>,
}

impl Peer {
    fn new(outgoing: blocking::Sender<Vec<u8>>, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            unwritten: AtomicUsize::new(0),
            outgoing: Mutex::new(Some(outgoing)),
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            served: Mutex::default(),
            expected_late: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            cause: Mutex::default(),
        }
    }

    /// Starts the reading and the writing thread of a connection.
    pub(crate) fn start(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        name: &str,
        handler: Arc<dyn RequestHandler>,
    ) -> Result<Arc<Self>> {
        let (outgoing, lines) = blocking::channel();
        let peer = Arc::new(Self::new(outgoing, name));
        let (writing, reading) = (Arc::clone(&peer), Arc::clone(&peer));
        let short_name: String = name.chars().take(10).collect();
        let thread = |role: &str| std::thread::Builder::new().name(format!("{short_name}-{role}"));
        thread("write").spawn(move || write_lines(writer, &lines, &writing))?;
        thread("read").spawn(move || {
            let cause = read_lines(reader, &reading, handler.as_ref());
            reading.close(&cause);
            handler.handle_close(&reading, &cause);
        })?;
        Ok(peer)
    }

    /// Returns whether the connection was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Builds the error for requests that were unanswered when the connection closed.
    pub(crate) fn closed_error(&self) -> Error {
        Error::new(
            ErrorKind::Temporary,
            format!("plugin {}: {}", self.name, self.close_reason()),
        )
    }

    fn close_reason(&self) -> String {
        lock(&self.cause)
            .clone()
            .unwrap_or_else(|| "the process ended; see the log".to_owned())
    }

    /// Closes the connection. Fails all unanswered requests of this side and cancels the requests of the other side.
    pub(crate) fn close(&self, cause: &str) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        *lock(&self.cause) = Some(cause.to_owned());
        *lock(&self.outgoing) = None;
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waiter in waiting.into_values() {
            waiter.deliver_response(Err(self.closed_error()));
        }
        for request in std::mem::take(&mut *lock(&self.served)).into_values() {
            request.cancel.cancel();
        }
    }

    /// Sends a request whose messages are received asynchronously. The other side may send `credits` events before the
    /// response.
    pub(crate) fn send_request(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
        credits: usize,
    ) -> OutgoingRequest<IncomingReceiver> {
        let (sender, receiver) = mpsc::channel(Waiter::queue_capacity(credits));
        let backlog = Arc::<Backlog>::default();
        let waiter = Waiter {
            sink: ResponseSink::Async(sender),
            credits,
            backlog: Arc::clone(&backlog),
        };
        let id = self.register_request(method, params, waiter);
        OutgoingRequest {
            peer: Arc::clone(self),
            id,
            receiver,
            is_over: false,
            backlog,
        }
    }

    /// Sends a request whose messages are received by a blocking thread.
    pub(crate) fn send_request_blocking(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
    ) -> OutgoingRequest<blocking::Receiver<IncomingMessage>> {
        let (sender, receiver) = blocking::sync_channel(Waiter::queue_capacity(0));
        let backlog = Arc::<Backlog>::default();
        let waiter = Waiter {
            sink: ResponseSink::Blocking(sender),
            credits: 0,
            backlog: Arc::clone(&backlog),
        };
        let id = self.register_request(method, params, waiter);
        OutgoingRequest {
            peer: Arc::clone(self),
            id,
            receiver,
            is_over: false,
            backlog,
        }
    }

    fn register_request(&self, method: &str, params: &Value, waiter: Waiter) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).insert(id, waiter);
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        // If the connection was closed concurrently, `close` may have missed this request.
        if self.is_closed()
            && let Some(waiter) = lock(&self.waiting).remove(&id)
        {
            waiter.deliver_response(Err(self.closed_error()));
        }
        id
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, method: &str, params: &Value) {
        self.send_message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Answers a request from the other side.
    pub(crate) fn respond(&self, id: &Value, result: Result<Value>) {
        lock(&self.served).remove(&id.to_string());
        self.send_message(&match result {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => {
                let (message, data) = (error.message(), error.to_value());
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": message, "data": data}})
            }
        });
    }

    /// Returns a request from the other side, if it is unanswered and not cancelled.
    pub(crate) fn served_request(&self, id: &Value) -> Option<ServedRequest> {
        lock(&self.served).get(&id.to_string()).cloned()
    }

    fn send_message(&self, message: &Value) {
        // Messages are JSON values, so encoding does not fail.
        let Ok(mut line) = serde_json::to_vec(message) else {
            return;
        };
        line.push(b'\n');
        let unwritten = self.unwritten.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        if unwritten > MAX_UNWRITTEN_BYTES {
            return self
                .close("the process does not read its input; read stdin also while a hook runs");
        }
        if let Some(outgoing) = &*lock(&self.outgoing) {
            let _ = outgoing.send(line);
        }
    }

    /// Passes a message to its request or to the handler. Returns whether the message is valid.
    fn handle_message(
        self: &Arc<Self>,
        message: RpcMessage,
        length: usize,
        handler: &dyn RequestHandler,
    ) -> bool {
        let RpcMessage {
            id,
            method,
            params,
            result,
            error,
        } = message;
        match (method, id) {
            (Some(method), Some(id)) => self.handle_request(id, method, params, handler),
            (Some(method), None) if method == "stream/event" => {
                return self.handle_stream_event(params, length);
            }
            (Some(method), None) => self.handle_notification(&method, &params, handler),
            (None, Some(id)) => {
                let result = match (error, result) {
                    (Value::Null, Some(result)) => Ok(result),
                    (Value::Null, None) => Err(self
                        .protocol_error("invalid response: neither `result` nor `error` is set")),
                    (error, _) => Err(rpc_message::response_error(&error)),
                };
                let Some(number) = id
                    .as_u64()
                    .filter(|id| *id < self.next_id.load(Ordering::Relaxed))
                else {
                    // The request that this response belongs to would never be answered.
                    self.close(&format!("the process answered with unknown id {id}; answer each request once, with its `id`"));
                    return true;
                };
                let waiter = lock(&self.waiting).remove(&number);
                let Some(waiter) = waiter else {
                    return self.accept_late_message();
                };
                waiter.deliver_response(result);
            }
            (None, None) => {
                let is_answer = result.is_some() || !error.is_null();
                self.handle_invalid_line(
                    &PartialRpcMessage {
                        is_answer,
                        ..PartialRpcMessage::default()
                    },
                    "`id` is missing",
                );
                return false;
            }
        }
        true
    }

    /// Builds the error for an invalid response.
    fn protocol_error(&self, cause: &str) -> Error {
        Error::unknown(format!("plugin {}: {cause}", self.name))
    }

    /// Handles a line that is not a valid message. Fails the request that the line belongs to, so that the caller does not
    /// wait for a response.
    fn handle_invalid_line(&self, partial: &PartialRpcMessage, cause: &str) {
        if partial.is_call {
            if let Some(id) = partial.id {
                let cause = format!("invalid request: {cause}");
                self.respond(&id.into(), Err(Error::invalid_input(cause)));
            }
            return;
        }
        let waiter = {
            let mut waiting = lock(&self.waiting);
            // A response without an id must belong to the only unanswered request.
            let only_request = (partial.is_answer && waiting.len() == 1)
                .then(|| waiting.keys().next().copied())
                .flatten();
            partial
                .id
                .or(only_request)
                .and_then(|id| waiting.remove(&id))
        };
        if let Some(waiter) = waiter {
            let error = self.protocol_error(&format!("invalid response: {cause}"));
            waiter.deliver_response(Err(error));
        }
    }

    fn handle_request(
        self: &Arc<Self>,
        id: Value,
        method: String,
        params: Value,
        handler: &dyn RequestHandler,
    ) {
        let credits = params.get("credits").filter(|credits| !credits.is_null());
        let Some(credits) = credits.map_or(Some(0), Value::as_u64) else {
            let error = Error::invalid_input("invalid `credits`: expected a non-negative integer");
            return self.respond(&id, Err(error));
        };
        let credits = usize::try_from(credits)
            .unwrap_or_default()
            .min(Semaphore::MAX_PERMITS >> 1);
        let request = ServedRequest {
            cancel: CancellationToken::new(),
            credits: Arc::new(Semaphore::new(credits)),
        };
        {
            let mut served = lock(&self.served);
            if served.len() >= MAX_PENDING_REQUESTS {
                drop(served);
                return self.reject_overload(&id);
            }
            served.insert(id.to_string(), request);
        }
        // A question about a request of this side goes to the task that made the request.
        let call = params.get("call").and_then(Value::as_u64);
        let waiting = lock(&self.waiting);
        let Some(waiter) = call.and_then(|call| waiting.get(&call)) else {
            drop(waiting);
            return handler.handle_request(self, id, &method, params);
        };
        let request_id = id.clone();
        let is_delivered =
            waiter.deliver_question(IncomingMessage::Question { id, method, params });
        drop(waiting);
        if !is_delivered {
            self.reject_overload(&request_id);
        }
    }

    /// Rejects a request from the other side, because too many of its requests are unanswered.
    fn reject_overload(&self, id: &Value) {
        let error = Error::new(
            ErrorKind::Temporary,
            format!(
                "too many concurrent requests: the limit is {MAX_PENDING_REQUESTS}; wait for a response before you send more"
            ),
        );
        self.respond(id, Err(error));
    }

    fn handle_notification(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
        handler: &dyn RequestHandler,
    ) {
        let id = params.get("id").cloned().unwrap_or_default();
        match method {
            "stream/credit" => {
                let credits = params
                    .get("credits")
                    .and_then(Value::as_u64)
                    .unwrap_or_default();
                if let Some(request) = self.served_request(&id) {
                    request
                        .credits
                        .add_permits(usize::try_from(credits).unwrap_or_default().min(1 << 20));
                }
            }
            "$/cancelRequest" => {
                let request = lock(&self.served).remove(&id.to_string());
                if let Some(request) = request {
                    request.cancel.cancel();
                }
            }
            _ => handler.handle_notification(method, params),
        }
    }

    /// Accepts a message for a cancelled request. Returns `false` if no more such messages can arrive.
    fn accept_late_message(&self) -> bool {
        self.expected_late
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |late| {
                late.checked_sub(1)
            })
            .is_ok()
    }

    fn handle_stream_event(&self, mut params: Value, length: usize) -> bool {
        let Some(number) = params.get("id").and_then(Value::as_u64) else {
            return false;
        };
        let mut waiting = lock(&self.waiting);
        let Some(waiter) = waiting.get_mut(&number) else {
            drop(waiting);
            return self.accept_late_message();
        };
        let too_many = "the process sent more events than it has credits for";
        let error = match waiter.credits.checked_sub(1) {
            Some(remaining)
                if waiter.backlog.bytes.fetch_add(length, Ordering::Relaxed) + length
                    <= MAX_UNREAD_BYTES =>
            {
                waiter.credits = remaining;
                let event = params.get_mut("event").map(Value::take).unwrap_or_default();
                if waiter.sink.try_send(IncomingMessage::Event(event), length) {
                    return true;
                }
                too_many.to_owned()
            }
            Some(_) => {
                format!("the unread events of the stream exceed {MAX_UNREAD_BYTES} bytes")
            }
            None => too_many.to_owned(),
        };
        drop(waiting);
        // The other side ignores the flow control, so no limit would hold.
        self.close(&error);
        true
    }
}

/// Locks a mutex, also after a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the current instant plus a duration.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    Instant::now() + limit
}
