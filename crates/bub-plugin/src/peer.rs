//! One end of a JSON-RPC 2.0 connection with one JSON-RPC message per line. Host and plugin use the same code. "This
//! side" is the process that runs the code, and "the other side" is the process it is connected to.
//!
//! One thread reads and one thread writes. A synchronous hook blocks its thread until the response arrives, so the
//! connection must not depend on a free thread of the async runtime.

mod lines;
mod outgoing;

use std::{
    collections::HashMap,
    io::{Read, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc as blocking,
    },
};

use bub_kernel::{CancellationToken, Error, ErrorKind, Result};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub(crate) use self::{
    lines::read_lines,
    outgoing::{OutgoingRequest, block_until},
};
use self::{lines::write_lines, outgoing::Waiter};
use crate::rpc_message::{self, PartialRpcMessage, RpcMessage};

/// Maximum length of a JSON-RPC message in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// Why a connection was closed, if the process ended.
const PROCESS_ENDED_TEXT: &str = "the process ended; see the log";
/// Maximum total size of a stream's unread events in bytes.
const MAX_UNREAD_BYTES: usize = 32 * 1024 * 1024;
/// Maximum total size in bytes of the JSON-RPC messages that wait to be written. If it is exceeded, the connection is
/// closed.
const MAX_UNWRITTEN_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of unanswered requests from the other side. Also the maximum number of [`IncomingMessage::Question`]s
/// in the queue of one request.
const MAX_PENDING_REQUESTS: usize = 256;

/// A JSON-RPC message from the other side that belongs to a request of this side.
#[derive(Debug)]
pub(crate) enum IncomingMessage {
    /// The response. It ends the request.
    Response(Result<Value>),
    /// An event, if the request is answered with a stream.
    Event(Value),
    /// A request that the other side sends while it handles the request of this side, such as `next/call`.
    Question(Question),
}

/// A request from the other side.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Value,
}

/// Handles requests and notifications from the other side.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Handles a request from the other side that is not an [`IncomingMessage::Question`]. Answers it with
    /// [`Peer::respond`].
    fn handle_request(&self, peer: &Arc<Peer>, question: Question);

    /// Handles a notification from the other side.
    fn handle_notification(&self, method: &str, params: &Value);

    /// Handles the end of the connection. The peer calls it once.
    fn handle_close(&self, peer: &Peer, cause: &str);
}

/// One end of a connection.
#[derive(Default)]
pub(crate) struct Peer {
    name: String,
    unwritten: AtomicUsize,
    /// Queue of lines for the writing thread. Adding a line never blocks: otherwise, both sides could wait for each
    /// other to read. [`MAX_UNWRITTEN_BYTES`] limits the size of the queue. An open connection never drops a line.
    outgoing: Mutex<Option<blocking::Sender<Vec<u8>>>>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// Unanswered requests from the other side. The key is the JSON text of the id.
    served: Mutex<HashMap<String, ServedRequest>>,
    /// Number of responses and events that may still arrive for cancelled requests.
    expected_late: AtomicUsize,
    /// Why the connection was closed.
    closed: OnceLock<String>,
}

/// An unanswered request from the other side.
#[derive(Clone)]
pub(crate) struct ServedRequest {
    /// Cancelled when the other side cancels the request.
    pub(crate) cancel: CancellationToken,
    /// Number of events that this side may still send.
    pub(crate) credits: Arc<Semaphore>,
}

impl Peer {
    pub(crate) fn new(outgoing: blocking::Sender<Vec<u8>>, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            outgoing: Mutex::new(Some(outgoing)),
            next_id: AtomicU64::new(1),
            ..Self::default()
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
        self.closed.get().is_some()
    }

    /// Builds the error for requests that were unanswered when the connection closed.
    pub(crate) fn closed_error(&self) -> Error {
        Error::new(
            ErrorKind::Temporary,
            format!("plugin {}: {}", self.name, self.close_reason()),
        )
    }

    fn close_reason(&self) -> String {
        let reason = self.closed.get().map(String::as_str);
        reason.unwrap_or(PROCESS_ENDED_TEXT).to_owned()
    }

    /// Closes the connection. Fails all unanswered requests of this side and cancels the requests of the other side.
    pub(crate) fn close(&self, cause: &str) {
        if self.closed.set(cause.to_owned()).is_err() {
            return;
        }
        *self.outgoing.lock() = None;
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waiter in waiting.into_values() {
            waiter.deliver_response(Err(self.closed_error()));
        }
        for request in std::mem::take(&mut *self.served.lock()).into_values() {
            request.cancel.cancel();
        }
    }

    /// Sends a request. The returned value receives the messages that belong to the request. The other side may send
    /// `credits` events before the response, and more after [`OutgoingRequest::grant_credits`].
    pub(crate) fn send_request(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
        credits: usize,
    ) -> OutgoingRequest {
        let (waiter, receiver) = Waiter::new(credits);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = OutgoingRequest {
            peer: Arc::clone(self),
            id,
            receiver,
            is_over: false,
            backlog: Arc::clone(&waiter.backlog),
        };
        self.waiting.lock().insert(id, waiter);
        self.send_call(Some(id), method, params);
        // If the connection was closed concurrently, `close` may have missed this request.
        if self.is_closed()
            && let Some(waiter) = self.waiting.lock().remove(&id)
        {
            waiter.deliver_response(Err(self.closed_error()));
        }
        request
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, method: &str, params: &Value) {
        self.send_call(None, method, params);
    }

    /// Sends a request or a notification without copying its parameters.
    fn send_call(&self, id: Option<u64>, method: &str, params: &Value) {
        #[derive(Serialize)]
        struct Call<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<u64>,
            method: &'a str,
            params: &'a Value,
        }
        let jsonrpc = "2.0";
        self.send_message(&Call {
            jsonrpc,
            id,
            method,
            params,
        });
    }

    /// Answers a request from the other side.
    pub(crate) fn respond(&self, id: &Value, result: Result<Value>) {
        self.served.lock().remove(&id.to_string());
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
        self.served.lock().get(&id.to_string()).cloned()
    }

    /// Returns a token that is cancelled when the other side cancels its request.
    pub(crate) fn cancellation(&self, id: &Value) -> CancellationToken {
        let request = self.served_request(id);
        request.map(|request| request.cancel).unwrap_or_default()
    }

    fn send_message(&self, message: &impl Serialize) {
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
        if let Some(outgoing) = &*self.outgoing.lock() {
            let _ = outgoing.send(line);
        }
    }

    /// Passes a message from the other side to the request that it belongs to, or to the handler. `length` is its size
    /// in bytes. Returns whether the message is valid.
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
            (Some(method), Some(id)) => {
                self.handle_request(Question { id, method, params }, handler);
            }
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
                let next_id = self.next_id.load(Ordering::Relaxed);
                let Some(number) = id.as_u64().filter(|id| *id < next_id) else {
                    // Close the connection: the request that the other side meant to answer would wait forever.
                    self.close(&format!("the process answered with unknown id {id}; answer each request once, with its `id`"));
                    return true;
                };
                let waiter = self.waiting.lock().remove(&number);
                match waiter {
                    Some(waiter) => waiter.deliver_response(result),
                    None => return self.accept_late_message(),
                }
            }
            (None, None) => {
                let partial = PartialRpcMessage {
                    is_answer: result.is_some() || !error.is_null(),
                    ..PartialRpcMessage::default()
                };
                self.handle_invalid_line(&partial, "`id` is missing");
                return false;
            }
        }
        true
    }

    /// Builds the error for an invalid response.
    fn protocol_error(&self, cause: &str) -> Error {
        Error::unknown(format!("plugin {}: {cause}", self.name))
    }

    /// Handles a line that is not a valid JSON-RPC message. Fails the request that the line belongs to, so that its
    /// caller does not wait forever.
    fn handle_invalid_line(&self, partial: &PartialRpcMessage, cause: &str) {
        if partial.is_call {
            if let Some(id) = partial.id {
                let cause = format!("invalid request: {cause}");
                self.respond(&id.into(), Err(Error::invalid_input(cause)));
            }
            return;
        }
        let waiter = {
            let mut waiting = self.waiting.lock();
            // If there is only one unanswered request, a response without an id must belong to it.
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

    fn handle_request(self: &Arc<Self>, question: Question, handler: &dyn RequestHandler) {
        let Question { id, params, .. } = &question;
        let credits = params.get("credits").filter(|credits| !credits.is_null());
        let Some(credits) = credits.map_or(Some(0), Value::as_u64) else {
            let error = Error::invalid_input("invalid `credits`: expected a non-negative integer");
            return self.respond(id, Err(error));
        };
        let credits = usize::try_from(credits)
            .unwrap_or_default()
            .min(Semaphore::MAX_PERMITS >> 1);
        let request = ServedRequest {
            cancel: CancellationToken::new(),
            credits: Arc::new(Semaphore::new(credits)),
        };
        {
            let mut served = self.served.lock();
            if served.len() >= MAX_PENDING_REQUESTS {
                drop(served);
                return self.reject_overload(id);
            }
            served.insert(id.to_string(), request);
        }
        // The parameter `call` names a request of this side: pass the question to the task that sent that request.
        let call = params.get("call").and_then(Value::as_u64);
        let waiting = self.waiting.lock();
        let Some(waiter) = call.and_then(|call| waiting.get(&call)) else {
            drop(waiting);
            return handler.handle_request(self, question);
        };
        let request_id = id.clone();
        let is_delivered = waiter.deliver_question(question);
        drop(waiting);
        if !is_delivered {
            self.reject_overload(&request_id);
        }
    }

    /// Rejects a request from the other side, because too many of its requests are unanswered.
    fn reject_overload(&self, id: &Value) {
        let text = format!(
            "too many concurrent requests: the limit is {MAX_PENDING_REQUESTS}; wait for a response before you send more"
        );
        self.respond(id, Err(Error::new(ErrorKind::Temporary, text)));
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
                let credits = params.get("credits").and_then(Value::as_u64);
                let credits = usize::try_from(credits.unwrap_or_default()).unwrap_or_default();
                if let Some(request) = self.served_request(&id) {
                    request.credits.add_permits(credits.min(1 << 20));
                }
            }
            "$/cancelRequest" => {
                let request = self.served.lock().remove(&id.to_string());
                if let Some(request) = request {
                    request.cancel.cancel();
                }
            }
            _ => handler.handle_notification(method, params),
        }
    }

    /// Accepts a message for a cancelled request. Returns `false` if no such message is expected.
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
        let mut waiting = self.waiting.lock();
        let Some(waiter) = waiting.get_mut(&number) else {
            drop(waiting);
            return self.accept_late_message();
        };
        let unread = waiter.backlog.bytes.fetch_add(length, Ordering::Relaxed) + length;
        let error = if waiter.credits > 0 && unread > MAX_UNREAD_BYTES {
            format!("the unread events of the stream exceed {MAX_UNREAD_BYTES} bytes")
        } else {
            let event = params.get_mut("event").map(Value::take).unwrap_or_default();
            if waiter.credits > 0 && waiter.try_send(IncomingMessage::Event(event), length) {
                waiter.credits -= 1;
                return true;
            }
            "the process sent more events than it has credits for".to_owned()
        };
        drop(waiting);
        // The other side exceeded a limit of the stream, so close the connection.
        self.close(&error);
        true
    }
}
