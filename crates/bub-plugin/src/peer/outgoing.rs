//! Requests that this side sent, and the queues for the messages that belong to them.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use bub_kernel::Result;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{IncomingMessage, MAX_PENDING_REQUESTS, Peer, Question};

/// An unanswered request of this side.
pub(super) struct Waiter {
    /// Sending end of the queue of the request. The reading thread adds messages without blocking, so that a full queue
    /// does not delay other requests. The capacity covers all events that the credits allow, [`MAX_PENDING_REQUESTS`]
    /// questions and the response. Events and questions are counted, so the response always fits.
    queue: mpsc::Sender<(IncomingMessage, usize)>,
    /// Number of events that the other side may still send.
    pub(super) credits: usize,
    pub(super) backlog: Arc<Backlog>,
}

/// What the other side sent for a request and bub has not read yet: the bytes of events, and the number of requests
/// that the other side makes before it responds.
#[derive(Default)]
pub(super) struct Backlog {
    /// Total size of the queued events in bytes.
    pub(super) bytes: AtomicUsize,
    questions: AtomicUsize,
}

/// Receives the messages that belong to a request, with their length in bytes.
type IncomingReceiver = mpsc::Receiver<(IncomingMessage, usize)>;

impl Waiter {
    /// Creates a request and the receiving end of its queue.
    pub(super) fn new(credits: usize) -> (Self, IncomingReceiver) {
        let (queue, receiver) = mpsc::channel(credits + MAX_PENDING_REQUESTS + 1);
        let waiter = Self {
            queue,
            credits,
            backlog: Arc::default(),
        };
        (waiter, receiver)
    }

    /// Adds a message to the queue. Returns `false` if the queue is full. If the receiver was dropped, discards the
    /// message and returns `true`.
    pub(super) fn try_send(&self, incoming: IncomingMessage, length: usize) -> bool {
        let sent = self.queue.try_send((incoming, length));
        !matches!(sent, Err(mpsc::error::TrySendError::Full(_)))
    }

    /// Delivers the response, which ends the request.
    pub(super) fn deliver_response(self, result: Result<Value>) {
        // The queue always has room for the response.
        self.try_send(IncomingMessage::Response(result), 0);
    }

    /// Delivers an [`IncomingMessage::Question`] about the request. Returns `false` if the queue contains
    /// [`MAX_PENDING_REQUESTS`] questions. A cancelled question counts until it is read from the queue.
    pub(super) fn deliver_question(&self, question: Question) -> bool {
        let questions = &self.backlog.questions;
        if questions.fetch_add(1, Ordering::Relaxed) >= MAX_PENDING_REQUESTS {
            questions.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.try_send(IncomingMessage::Question(question), 0)
    }
}

/// A request of this side. Dropping it before the response arrives cancels the request.
pub(crate) struct OutgoingRequest {
    pub(crate) peer: Arc<Peer>,
    pub(super) id: u64,
    pub(super) receiver: IncomingReceiver,
    /// Whether the response has arrived.
    pub(super) is_over: bool,
    pub(super) backlog: Arc<Backlog>,
}

impl Drop for OutgoingRequest {
    fn drop(&mut self) {
        let waiter = self.peer.waiting.lock().remove(&self.id);
        if let Some(waiter) = waiter.filter(|_| !self.is_over) {
            self.peer
                .expected_late
                .fetch_add(waiter.credits + 1, Ordering::Relaxed);
            self.peer.notify("$/cancelRequest", &json!({"id": self.id}));
        }
    }
}

impl OutgoingRequest {
    /// Returns whether the response has arrived.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Allows the other side to send `credits` more events.
    pub(crate) fn grant_credits(&self, credits: usize) {
        if let Some(waiter) = self.peer.waiting.lock().get_mut(&self.id) {
            waiter.credits += credits;
        }
        self.peer
            .notify("stream/credit", &json!({"id": self.id, "credits": credits}));
    }

    /// Subtracts a received message from the [`Backlog`] and returns the message. The response ends the request. Returns
    /// `None` for a question that was cancelled while it was in the queue.
    fn note_received(
        &mut self,
        incoming: IncomingMessage,
        length: usize,
    ) -> Option<IncomingMessage> {
        self.backlog.bytes.fetch_sub(length, Ordering::Relaxed);
        match &incoming {
            IncomingMessage::Question(question) => {
                self.backlog.questions.fetch_sub(1, Ordering::Relaxed);
                self.peer.served_request(&question.id)?;
            }
            IncomingMessage::Response(_) => self.is_over = true,
            IncomingMessage::Event(_) => {}
        }
        Some(incoming)
    }

    /// Waits for the next message of the request. Returns an error response if the connection is closed.
    pub(crate) async fn next_message(&mut self) -> IncomingMessage {
        while let Some((incoming, length)) = self.receiver.recv().await {
            if let Some(incoming) = self.note_received(incoming, length) {
                return incoming;
            }
        }
        IncomingMessage::Response(Err(self.peer.closed_error()))
    }

    /// Blocks until the response arrives. Returns `None` after the deadline, which does not include the time that
    /// `answer` takes for the requests of the other side.
    pub(crate) fn wait_blocking(
        &mut self,
        mut deadline: Instant,
        answer: impl Fn(Question),
    ) -> Option<Result<Value>> {
        loop {
            match block_until(self.next_message(), deadline)? {
                IncomingMessage::Response(response) => return Some(response),
                IncomingMessage::Question(question) => {
                    let started = Instant::now();
                    answer(question);
                    deadline += started.elapsed();
                }
                IncomingMessage::Event(_) => {}
            }
        }
    }
}

/// Wakes a thread that runs [`block_until`].
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the future is ready. Returns `None` after the deadline. The thread may belong to an async
/// runtime: a synchronous hook is called on it.
pub(crate) fn block_until<T>(future: impl Future<Output = T>, deadline: Instant) -> Option<T> {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    // Without the budget of the runtime's task that runs the hook: the budget is not renewed while the hook runs.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return None;
        }
        thread::park_timeout(remaining);
    }
}
