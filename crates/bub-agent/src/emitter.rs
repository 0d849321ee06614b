//! A stream of events written as a plain `async` function.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bub_kernel::{ModelStream, Result, StreamEvent};
use futures_core::Stream;

/// Where the function puts its events. Each waits until the one before it was taken.
#[derive(Clone, Default)]
pub(crate) struct Emitter(Arc<Mutex<EmitterState>>);

#[derive(Default)]
struct EmitterState {
    event: Option<StreamEvent>,
    sender: Option<Waker>,
}

impl Emitter {
    /// Hands one event over.
    pub(crate) async fn send(&self, event: StreamEvent) {
        let mut event = Some(event);
        std::future::poll_fn(|context| {
            let mut exchange = self.lock();
            if exchange.event.is_none() {
                match event.take() {
                    Some(event) => exchange.event = Some(event),
                    // It was put there before, and is gone now.
                    None => return Poll::Ready(()),
                }
            }
            exchange.sender = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn pop_event(&self) -> Option<StreamEvent> {
        let mut exchange = self.lock();
        let event = exchange.event.take()?;
        let sender = exchange.sender.take();
        drop(exchange);
        if let Some(sender) = sender {
            sender.wake();
        }
        Some(event)
    }

    fn lock(&self) -> MutexGuard<'_, EmitterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events that `work` sends. Its error is the last of them; dropping the stream drops the work.
pub(crate) fn stream<F>(work: impl FnOnce(Emitter) -> F) -> ModelStream
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
