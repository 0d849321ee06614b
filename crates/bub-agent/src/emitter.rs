//! Turns an `async` function into a stream of the events that the function sends.

use std::{future, sync::Arc, task::Poll};

use bub_kernel::{ModelStream, Result, StreamEvent};
use futures_util::{stream, task::AtomicWaker};
use parking_lot::Mutex;

/// The sending side of an event stream. It holds at most one event.
#[derive(Clone, Default)]
pub(crate) struct Emitter(Arc<EventSlot>);

#[derive(Default)]
struct EventSlot {
    event: Mutex<Option<StreamEvent>>,
    sender: AtomicWaker,
}

impl Emitter {
    /// Sends an event and waits until the reader of the stream has received it. The work of a stream sends one event at
    /// a time.
    pub(crate) async fn send(&self, event: StreamEvent) {
        *self.0.event.lock() = Some(event);
        future::poll_fn(|context| {
            self.0.sender.register(context.waker());
            match *self.0.event.lock() {
                Some(_) => Poll::Pending,
                None => Poll::Ready(()),
            }
        })
        .await;
    }

    fn take_event(&self) -> Option<StreamEvent> {
        let event = self.0.event.lock().take()?;
        self.0.sender.wake();
        Some(event)
    }
}

/// Returns a stream of the events that the function `work` sends. If `work` fails, its error is the last item. Dropping
/// the stream cancels `work`.
pub(crate) fn stream_events<F>(work: impl FnOnce(Emitter) -> F) -> ModelStream
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let emitter = Emitter::default();
    let mut work = Some(Box::pin(work(emitter.clone())));
    ModelStream::new(stream::poll_fn(move |context| {
        let Some(running) = &mut work else {
            return Poll::Ready(None);
        };
        let polled = running.as_mut().poll(context);
        if let Some(event) = emitter.take_event() {
            return Poll::Ready(Some(Ok(event)));
        }
        polled.map(|outcome| {
            work = None;
            outcome.err().map(Err)
        })
    }))
}
