//! Speed of an answer, controlled by the test instead of a clock.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Limits how many events of an answer are sent.
///
/// Clones share their state: pass one to [`Reply::paced`](super::Reply::paced) and keep the other.
#[derive(Clone, Debug)]
pub struct Pace {
    permits: Arc<Semaphore>,
}

impl Pace {
    /// Creates a pace that blocks all events.
    pub fn stopped() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
        }
    }

    /// Allows this many more events.
    pub fn allow(&self, events: usize) {
        self.permits.add_permits(events);
    }

    /// Allows all events from now on.
    pub fn release(&self) {
        self.permits.close();
    }

    /// Waits until one more event may be sent.
    pub(super) async fn wait_for_permit(&self) {
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }
}
