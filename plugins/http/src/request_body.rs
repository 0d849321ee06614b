//! The body of a request: read by a route within a time limit, and afterwards discarded by the listener.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bub::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep, timeout};

/// The body of a request. The listener keeps it while the route reads it as a [`TimedBody`].
#[derive(Clone)]
pub(crate) struct SharedBody(Arc<Mutex<Incoming>>);

impl SharedBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self(Arc::new(Mutex::new(incoming)))
    }

    fn lock(&self) -> MutexGuard<'_, Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and discards what the route has not read, in the background: a client that is still sending would not read
    /// the response. Returns `false` if nothing is left, or if the route is still reading.
    pub(crate) fn discard_rest(self, limit: Duration) -> bool {
        let Some(mut incoming) = Arc::into_inner(self.0)
            .map(|incoming| {
                incoming
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner)
            })
            .filter(|incoming| !incoming.is_end_stream())
        else {
            return false;
        };
        tokio::spawn(timeout(limit, async move {
            while let Some(Ok(_)) = incoming.frame().await {}
        }));
        true
    }
}

/// A [`SharedBody`] that fails with [`std::io::ErrorKind::TimedOut`] if the client does not send it in time.
pub(crate) struct TimedBody {
    shared: SharedBody,
    timer: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(crate) fn new(shared: &SharedBody, limit: Duration) -> Self {
        Self {
            shared: shared.clone(),
            timer: Box::pin(sleep(limit)),
        }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut *self.shared.lock()).poll_frame(context);
        if frame.is_pending() && self.timer.as_mut().poll(context).is_ready() {
            let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Poll::Ready(Some(Err(error.into())));
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.shared.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.shared.lock().size_hint()
    }
}
