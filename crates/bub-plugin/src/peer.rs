//! One end of a conversation in JSON-RPC 2.0, a message a line. Host and plugin are alike in it.
//!
//! Reading and writing have a thread each: a synchronous hook blocks its thread until the answer is there, and no
//! runtime may have to be free for that.

mod lines;

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
use self::lines::{read_lines, write_lines};
use crate::rpc_message::{self, PartialRpcMessage, RpcMessage};

/// No message is longer, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
/// So much of a stream may wait for its reader, in bytes.
const MAX_UNREAD_BYTES: usize = 32 * 1024 * 1024;
/// So much may wait to be written before the other side counts as dead.
const MAX_UNWRITTEN_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of unanswered requests of the other side, and of its questions that a call has not taken yet.
const MAX_PENDING_REQUESTS: usize = 256;

/// What arrives for a request that was made.
#[derive(Debug)]
pub(crate) enum IncomingMessage {
    /// Its end.
    Response(Result<Value>),
    /// A piece of the stream that is its answer.
    Event(Value),
    /// The other side asks back, about this very request.
    Question {
        id: Value,
        method: String,
        params: Value,
    },
}

/// Does what the other side asks for.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// A request that belongs to none of ours. It is answered with [`Peer::respond`].
    fn request(&self, peer: &Arc<Peer>, id: Value, method: &str, params: Value);

    /// A notification.
    fn notification(&self, method: &str, params: &Value);

    /// The conversation is over. Told once.
    fn closed(&self, peer: &Peer, cause: &str);
}

/// One end.
pub(crate) struct Peer {
    name: String,
    unwritten: AtomicUsize,
    /// Lines for the writing thread. Bounded by `MAX_UNWRITTEN_BYTES` bytes and not by a number of lines: a sender may be the
    /// reading thread or an async task and must not block, or both sides could wait for each other to read. If the
    /// bytes are exceeded, the conversation ends; no line is dropped while it goes on.
    outgoing: Mutex<Option<blocking::Sender<Vec<u8>>>>,
    next_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiter>>,
    /// The requests of the other side that are worked on, by the text of their id.
    working: Mutex<HashMap<String, ServedRequest>>,
    /// So many answers and events may still come for what nobody waits for any more.
    late: AtomicUsize,
    is_closed: AtomicBool,
    cause: Mutex<Option<String>>,
}

/// A request of the other side that is worked on.
#[derive(Clone)]
pub(crate) struct ServedRequest {
    /// Fires when the other side wants no answer any more.
    pub(crate) cancel: CancellationToken,
    /// How many events the other side has room for.
    pub(crate) credits: Arc<Semaphore>,
}

struct Waiter {
    to: ResponseSink,
    /// How many events may still come.
    credits: usize,
    backlog: Arc<Backlog>,
}

/// What has arrived for a request and was not taken yet.
#[derive(Default)]
struct Backlog {
    /// The events, in bytes.
    bytes: AtomicUsize,
    questions: AtomicUsize,
}

impl Backlog {
    fn take(&self, incoming: &IncomingMessage, length: usize) {
        self.bytes.fetch_sub(length, Ordering::Relaxed);
        if matches!(incoming, IncomingMessage::Question { .. }) {
            self.questions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The queue of a request. The reading thread fills it and never waits for room, so that a call which is not read holds
/// up no other. It has a slot for each event that credits allow, for [`MAX_PENDING_REQUESTS`] questions and for the response;
/// [`Waiter`] counts the first two, so the response always has its slot.
enum ResponseSink {
    Blocking(blocking::SyncSender<IncomingMessage>),
    Waiting(mpsc::Sender<(IncomingMessage, usize)>),
}

/// What has arrived for a request, each with its length in bytes.
pub(crate) type IncomingReceiver = mpsc::Receiver<(IncomingMessage, usize)>;

impl ResponseSink {
    /// Whether there was room. A receiver that was dropped has room for everything.
    fn send(&self, incoming: IncomingMessage, length: usize) -> bool {
        match self {
            Self::Blocking(to) => {
                !matches!(to.try_send(incoming), Err(blocking::TrySendError::Full(_)))
            }
            Self::Waiting(to) => !matches!(
                to.try_send((incoming, length)),
                Err(mpsc::error::TrySendError::Full(_))
            ),
        }
    }
}

impl Waiter {
    /// The slots that its queue needs.
    const fn capacity(credits: usize) -> usize {
        credits + MAX_PENDING_REQUESTS + 1
    }

    /// Ends the request.
    fn respond(self, result: Result<Value>) {
        // The last slot is kept for this.
        self.to.send(IncomingMessage::Response(result), 0);
    }

    /// Hands on a question about the request; `false` if too many were not taken yet. A plugin can get there: by
    /// cancelling its questions it may ask more than it has unanswered.
    fn ask(&self, question: IncomingMessage) -> bool {
        let questions = &self.backlog.questions;
        if questions.fetch_add(1, Ordering::Relaxed) >= MAX_PENDING_REQUESTS {
            questions.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.to.send(question, 0)
    }
}

/// A request that was made. Dropped before its end, it is cancelled.
pub(crate) struct OutgoingRequest<R> {
    pub(crate) peer: Arc<Peer>,
    pub(crate) id: u64,
    pub(crate) receiver: R,
    pub(crate) is_over: bool,
    backlog: Arc<Backlog>,
}

impl<R> Drop for OutgoingRequest<R> {
    fn drop(&mut self) {
        let waiter = lock(&self.peer.waiting).remove(&self.id);
        if let Some(waiter) = waiter.filter(|_| !self.is_over) {
            self.peer
                .late
                .fetch_add(waiter.credits + 1, Ordering::Relaxed);
            self.peer.notify("$/cancelRequest", &json!({"id": self.id}));
        }
    }
}

impl<R> OutgoingRequest<R> {
    /// Allows so many more events.
    pub(crate) fn grant(&self, credits: usize) {
        if let Some(waiter) = lock(&self.peer.waiting).get_mut(&self.id) {
            waiter.credits += credits;
        }
        self.peer
            .notify("stream/credit", &json!({"id": self.id, "credits": credits}));
    }
}

impl<R> OutgoingRequest<R> {
    /// Notes that an arrival was taken out of the queue; `None` for a question that was cancelled while it waited.
    fn taken(&self, incoming: IncomingMessage, length: usize) -> Option<IncomingMessage> {
        self.backlog.take(&incoming, length);
        let is_cancelled = matches!(&incoming, IncomingMessage::Question { id, .. } if self.peer.work(id).is_none());
        (!is_cancelled).then_some(incoming)
    }
}

impl OutgoingRequest<IncomingReceiver> {
    /// The next arrival. The end of the conversation is an error like any other.
    pub(crate) async fn next(&mut self) -> IncomingMessage {
        while let Some((incoming, length)) = self.receiver.recv().await {
            if let Some(incoming) = self.taken(incoming, length) {
                return incoming;
            }
        }
        IncomingMessage::Response(Err(self.peer.closed_error()))
    }
}

impl OutgoingRequest<blocking::Receiver<IncomingMessage>> {
    /// The next arrival, waited for on this thread; `None` when it took too long.
    pub(crate) fn next_before(&mut self, deadline: Instant) -> Option<IncomingMessage> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok(incoming) => {
                    let incoming = self.taken(incoming, 0);
                    // Cancelled questions, however many there are, do not extend the time.
                    if incoming.is_some() || left.is_zero() {
                        return incoming;
                    }
                }
                Err(blocking::RecvTimeoutError::Timeout) => return None,
                Err(blocking::RecvTimeoutError::Disconnected) => {
                    return Some(IncomingMessage::Response(Err(self.peer.closed_error())));
                }
            }
        }
    }
}

impl Peer {
    fn new(outgoing: blocking::Sender<Vec<u8>>, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            unwritten: AtomicUsize::new(0),
            outgoing: Mutex::new(Some(outgoing)),
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            working: Mutex::default(),
            late: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            cause: Mutex::default(),
        }
    }

    /// Starts a conversation.
    pub(crate) fn start(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        name: &str,
        handler: Arc<dyn RequestHandler>,
    ) -> Result<Arc<Self>> {
        let (outgoing, lines) = blocking::channel();
        let peer = Arc::new(Self::new(outgoing, name));
        let (writing, reading) = (Arc::clone(&peer), Arc::clone(&peer));
        let short: String = name.chars().take(10).collect();
        let thread = |role: &str| std::thread::Builder::new().name(format!("{short}-{role}"));
        thread("write").spawn(move || write_lines(writer, &lines, &writing))?;
        thread("read").spawn(move || {
            let cause = read_lines(reader, &reading, handler.as_ref());
            reading.close(&cause);
            handler.closed(&reading, &cause);
        })?;
        Ok(peer)
    }

    /// Whether it is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Why it is over, as the error of whoever waited.
    pub(crate) fn closed_error(&self) -> Error {
        Error::new(
            ErrorKind::Temporary,
            format!("plugin {}: {}", self.name, self.close_reason()),
        )
    }

    fn close_reason(&self) -> String {
        lock(&self.cause)
            .clone()
            .unwrap_or_else(|| "it ended".to_owned())
    }

    /// Ends it: whoever waits is told.
    pub(crate) fn close(&self, cause: &str) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        *lock(&self.cause) = Some(cause.to_owned());
        *lock(&self.outgoing) = None;
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for waiter in waiting.into_values() {
            waiter.respond(Err(self.closed_error()));
        }
        for work in std::mem::take(&mut *lock(&self.working)).into_values() {
            work.cancel.cancel();
        }
    }

    /// Asks the other side, and waits asynchronously. `credits` events may come before the answer.
    pub(crate) fn ask(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
        credits: usize,
    ) -> OutgoingRequest<IncomingReceiver> {
        let (to, receiver) = mpsc::channel(Waiter::capacity(credits));
        let backlog = Arc::<Backlog>::default();
        let waiter = Waiter {
            to: ResponseSink::Waiting(to),
            credits,
            backlog: Arc::clone(&backlog),
        };
        let id = self.send_request(method, params, waiter);
        OutgoingRequest {
            peer: Arc::clone(self),
            id,
            receiver,
            is_over: false,
            backlog,
        }
    }

    /// Asks the other side, to wait on this thread.
    pub(crate) fn ask_blocking(
        self: &Arc<Self>,
        method: &str,
        params: &Value,
    ) -> OutgoingRequest<blocking::Receiver<IncomingMessage>> {
        let (to, receiver) = blocking::sync_channel(Waiter::capacity(0));
        let backlog = Arc::<Backlog>::default();
        let waiter = Waiter {
            to: ResponseSink::Blocking(to),
            credits: 0,
            backlog: Arc::clone(&backlog),
        };
        let id = self.send_request(method, params, waiter);
        OutgoingRequest {
            peer: Arc::clone(self),
            id,
            receiver,
            is_over: false,
            backlog,
        }
    }

    fn send_request(&self, method: &str, params: &Value, waiter: Waiter) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.waiting).insert(id, waiter);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        // Whoever closed it meanwhile may not have seen the request.
        if self.is_closed()
            && let Some(waiter) = lock(&self.waiting).remove(&id)
        {
            waiter.respond(Err(self.closed_error()));
        }
        id
    }

    /// Tells the other side.
    pub(crate) fn notify(&self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Answers a request of the other side.
    pub(crate) fn respond(&self, id: &Value, result: Result<Value>) {
        lock(&self.working).remove(&id.to_string());
        self.send(&match result {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(error) => {
                let (message, data) = (error.message(), error.to_value());
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": message, "data": data}})
            }
        });
    }

    /// A request of the other side, while it is worked on.
    pub(crate) fn work(&self, id: &Value) -> Option<ServedRequest> {
        lock(&self.working).get(&id.to_string()).cloned()
    }

    fn send(&self, message: &Value) {
        // A line that cannot be written belongs to a conversation that is over.
        let Ok(mut line) = serde_json::to_vec(message) else {
            return;
        };
        line.push(b'\n');
        let waiting = self.unwritten.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        if waiting > MAX_UNWRITTEN_BYTES {
            return self.close("it does not read what it is told");
        }
        if let Some(outgoing) = &*lock(&self.outgoing) {
            let _ = outgoing.send(line);
        }
    }

    /// Hands a message to whom it belongs.
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
            (Some(method), Some(id)) => self.take_request(id, method, params, handler),
            (Some(method), None) if method == "stream/event" => {
                return self.take_event(params, length);
            }
            (Some(method), None) => self.take_notification(&method, &params, handler),
            (None, Some(id)) => {
                let result = match (error, result) {
                    (Value::Null, Some(result)) => Ok(result),
                    (Value::Null, None) => {
                        Err(self.wrong("its answer has neither `result` nor `error`"))
                    }
                    (error, _) => Err(rpc_message::read_error(&error)),
                };
                let Some(number) = id
                    .as_u64()
                    .filter(|id| *id < self.next_id.load(Ordering::Relaxed))
                else {
                    // Whoever waits for the answer that this was meant to be would wait for ever.
                    self.close(&format!(
                        "it answered with the id {id}, which no request has"
                    ));
                    return true;
                };
                let waiter = lock(&self.waiting).remove(&number);
                let Some(waiter) = waiter else {
                    return self.handle_late();
                };
                waiter.respond(result);
            }
            (None, None) => {
                let is_answer = result.is_some() || !error.is_null();
                self.handle_unreadable(
                    &PartialRpcMessage {
                        is_answer,
                        ..PartialRpcMessage::default()
                    },
                    "it has no `id`",
                );
                return false;
            }
        }
        true
    }

    /// The error of whoever waited for something that cannot be used.
    fn wrong(&self, cause: &str) -> Error {
        Error::unknown(format!("plugin {}: {cause}", self.name))
    }

    /// Tells whoever waits for it that a line cannot be read, so that nobody waits in vain.
    fn handle_unreadable(&self, seen: &PartialRpcMessage, cause: &str) {
        if seen.is_call {
            if let Some(id) = seen.id {
                let cause = format!("the request cannot be read: {cause}");
                self.respond(&id.into(), Err(Error::invalid_input(cause)));
            }
            return;
        }
        let waiter = {
            let mut waiting = lock(&self.waiting);
            // Without a number it can only be the answer to the one call that there is.
            let only = (seen.is_answer && waiting.len() == 1)
                .then(|| waiting.keys().next().copied())
                .flatten();
            seen.id.or(only).and_then(|id| waiting.remove(&id))
        };
        if let Some(waiter) = waiter {
            let error = self.wrong(&format!("its answer cannot be read: {cause}"));
            waiter.respond(Err(error));
        }
    }

    fn take_request(
        self: &Arc<Self>,
        id: Value,
        method: String,
        params: Value,
        handler: &dyn RequestHandler,
    ) {
        let credits = params.get("credits").filter(|credits| !credits.is_null());
        let Some(credits) = credits.map_or(Some(0), Value::as_u64) else {
            let wrong = Error::invalid_input("`credits` has to be a whole number, 0 or more");
            return self.respond(&id, Err(wrong));
        };
        let credits = usize::try_from(credits)
            .unwrap_or_default()
            .min(Semaphore::MAX_PERMITS >> 1);
        let work = ServedRequest {
            cancel: CancellationToken::new(),
            credits: Arc::new(Semaphore::new(credits)),
        };
        {
            let mut working = lock(&self.working);
            if working.len() >= MAX_PENDING_REQUESTS {
                drop(working);
                return self.refuse(&id);
            }
            working.insert(id.to_string(), work);
        }
        // What is asked about a call of ours is for whoever made that call.
        let call = params.get("call").and_then(Value::as_u64);
        let waiting = lock(&self.waiting);
        let Some(waiter) = call.and_then(|call| waiting.get(&call)) else {
            drop(waiting);
            return handler.request(self, id, &method, params);
        };
        let number = id.clone();
        let is_taken = waiter.ask(IncomingMessage::Question { id, method, params });
        drop(waiting);
        if !is_taken {
            self.refuse(&number);
        }
    }

    /// Answers a request of the other side that comes on top of too many.
    fn refuse(&self, id: &Value) {
        let error = Error::new(ErrorKind::Temporary, "too many requests at a time");
        self.respond(id, Err(error));
    }

    fn take_notification(
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
                if let Some(work) = self.work(&id) {
                    work.credits
                        .add_permits(usize::try_from(credits).unwrap_or_default().min(1 << 20));
                }
            }
            "$/cancelRequest" => {
                let work = lock(&self.working).remove(&id.to_string());
                if let Some(work) = work {
                    work.cancel.cancel();
                }
            }
            _ => handler.notification(method, params),
        }
    }

    /// Whether this can be for something that was cancelled meanwhile.
    fn handle_late(&self) -> bool {
        self.late
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |late| {
                late.checked_sub(1)
            })
            .is_ok()
    }

    fn take_event(&self, mut params: Value, length: usize) -> bool {
        let Some(number) = params.get("id").and_then(Value::as_u64) else {
            return false;
        };
        let mut waiting = lock(&self.waiting);
        let Some(waiter) = waiting.get_mut(&number) else {
            drop(waiting);
            return self.handle_late();
        };
        let too_many = "it sent more events than it was allowed to";
        let error = match waiter.credits.checked_sub(1) {
            Some(left)
                if waiter.backlog.bytes.fetch_add(length, Ordering::Relaxed) + length
                    <= MAX_UNREAD_BYTES =>
            {
                waiter.credits = left;
                let event = params.get_mut("event").map(Value::take).unwrap_or_default();
                if waiter.to.send(IncomingMessage::Event(event), length) {
                    return true;
                }
                too_many.to_owned()
            }
            Some(_) => {
                format!("more than {MAX_UNREAD_BYTES} bytes of its events were not read yet")
            }
            None => too_many.to_owned(),
        };
        drop(waiting);
        // Who does not keep to this floods.
        self.close(&error);
        true
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The moment that is so long from now.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    Instant::now() + limit
}
