//! The speed of an answer, set by the test instead of by a clock.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Lets the events of an answer through, as many as the test allows.
///
/// Clones are the same pace: give one to [`Reply::paced`](super::Reply::paced), keep the other.
#[derive(Clone, Debug)]
pub struct Pace {
    permits: Arc<Semaphore>,
}

impl Pace {
    /// A pace that lets nothing through yet.
    pub fn stopped() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
        }
    }

    /// Lets this many more events through.
    pub fn allow(&self, events: usize) {
        self.permits.add_permits(events);
    }

    /// Lets everything through from now on.
    pub fn release(&self) {
        self.permits.close();
    }

    /// Returns when one more event may be sent.
    pub(super) async fn wait(&self) {
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }
}
