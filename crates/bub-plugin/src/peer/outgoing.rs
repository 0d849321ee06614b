//! Requests that this side sent, and the queues for the messages that belong to them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc as blocking,
    },
    time::Instant,
};

use bub_kernel::Result;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{IncomingMessage, MAX_PENDING_REQUESTS, Peer, Question};

/// An unanswered request of this side.
pub(super) struct Waiter {
    pub(super) sink: ResponseSink,
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

/// Sending end of the queue of a request. The reading thread adds messages without blocking, so that a full queue does
/// not delay other requests. The capacity covers all events that the credits allow, [`MAX_PENDING_REQUESTS`] questions
/// and the response. [`Waiter`] counts events and questions, so the response always fits.
pub(super) enum ResponseSink {
    Blocking(blocking::SyncSender<IncomingMessage>),
    Async(mpsc::Sender<(IncomingMessage, usize)>),
}

/// Receives the messages that belong to a request, with their length in bytes.
pub(crate) type IncomingReceiver = mpsc::Receiver<(IncomingMessage, usize)>;

impl ResponseSink {
    /// Adds a message to the queue. Returns `false` if the queue is full. If the receiver was dropped, discards the
    /// message and returns `true`.
    pub(super) fn try_send(&self, incoming: IncomingMessage, length: usize) -> bool {
        match self {
            Self::Blocking(sender) => !matches!(
                sender.try_send(incoming),
                Err(blocking::TrySendError::Full(_))
            ),
            Self::Async(sender) => !matches!(
                sender.try_send((incoming, length)),
                Err(mpsc::error::TrySendError::Full(_))
            ),
        }
    }
}

/// Returns the queue capacity of a request with this number of credits.
pub(super) const fn queue_capacity(credits: usize) -> usize {
    credits + MAX_PENDING_REQUESTS + 1
}

impl Waiter {
    pub(super) fn new(sink: ResponseSink, credits: usize) -> Self {
        Self {
            sink,
            credits,
            backlog: Arc::default(),
        }
    }

    /// Delivers the response, which ends the request.
    pub(super) fn deliver_response(self, result: Result<Value>) {
        // The queue always has room for the response.
        self.sink.try_send(IncomingMessage::Response(result), 0);
    }

    /// Delivers an [`IncomingMessage::Question`] about the request. Returns `false` if the queue contains
    /// [`MAX_PENDING_REQUESTS`] questions. A cancelled question counts until it is read from the queue.
    pub(super) fn deliver_question(&self, question: Question) -> bool {
        let questions = &self.backlog.questions;
        if questions.fetch_add(1, Ordering::Relaxed) >= MAX_PENDING_REQUESTS {
            questions.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.sink.try_send(IncomingMessage::Question(question), 0)
    }
}

/// A request of this side. Dropping it before the response arrives cancels the request.
pub(crate) struct OutgoingRequest<R> {
    pub(crate) peer: Arc<Peer>,
    pub(super) id: u64,
    pub(super) receiver: R,
    /// Whether the response has arrived.
    pub(super) is_over: bool,
    pub(super) backlog: Arc<Backlog>,
}

impl<R> Drop for OutgoingRequest<R> {
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

impl<R> OutgoingRequest<R> {
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
}

impl OutgoingRequest<IncomingReceiver> {
    /// Waits for the next message of the request. Returns an error response if the connection is closed.
    pub(crate) async fn next_message(&mut self) -> IncomingMessage {
        while let Some((incoming, length)) = self.receiver.recv().await {
            if let Some(incoming) = self.note_received(incoming, length) {
                return incoming;
            }
        }
        IncomingMessage::Response(Err(self.peer.closed_error()))
    }
}

impl OutgoingRequest<blocking::Receiver<IncomingMessage>> {
    /// Blocks until the next message of the request arrives. Returns `None` after the deadline.
    pub(crate) fn next_message_before(&mut self, deadline: Instant) -> Option<IncomingMessage> {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(remaining) {
                Ok(incoming) => {
                    let incoming = self.note_received(incoming, 0);
                    // Cancelled questions do not extend the deadline.
                    if incoming.is_some() || remaining.is_zero() {
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
