//! Turns an `async` function into a stream of the events that the function sends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bub_kernel::{ModelStream, Result, StreamEvent};
use futures_core::Stream;
use parking_lot::Mutex;

/// The sending side of an event stream. It holds at most one event.
#[derive(Clone, Default)]
pub(crate) struct Emitter(Arc<Mutex<EmitterState>>);

#[derive(Default)]
struct EmitterState {
    event: Option<StreamEvent>,
    sender: Option<Waker>,
}

impl Emitter {
    /// Sends an event and waits until the reader of the stream has received it.
    pub(crate) async fn send(&self, event: StreamEvent) {
        let mut event = Some(event);
        std::future::poll_fn(|context| {
            let mut state = self.0.lock();
            if state.event.is_none() {
                match event.take() {
                    Some(event) => state.event = Some(event),
                    // An earlier poll stored the event, and the stream has taken it since.
                    None => return Poll::Ready(()),
                }
            }
            state.sender = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn pop_event(&self) -> Option<StreamEvent> {
        let mut state = self.0.lock();
        let event = state.event.take()?;
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
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
    ModelStream::new(EmitterStream {
        work: Some(Box::pin(work(emitter.clone()))),
        emitter,
    })
}

struct EmitterStream {
    work: Option<Pin<Box<dyn Future<Output = Result<()>> + Send>>>,
    emitter: Emitter,
}

impl Stream for EmitterStream {
    type Item = Result<StreamEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(work) = &mut self.work else {
            return Poll::Ready(None);
        };
        let polled = work.as_mut().poll(context);
        if let Some(event) = self.emitter.pop_event() {
            return Poll::Ready(Some(Ok(event)));
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(outcome) => {
                self.work = None;
                Poll::Ready(outcome.err().map(Err))
            }
        }
    }
}
