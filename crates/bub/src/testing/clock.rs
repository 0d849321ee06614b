//! A clock that tests move by hand.

use std::time::Duration;

use tokio::time::Instant;

/// A clock that a test moves by hand. All timeouts, delays and intervals of the runtime follow it.
///
/// It works in a runtime with one thread, the default of `#[tokio::test]`. If all tasks wait for time, the clock moves
/// to the next timer on its own.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let clock = bub::testing::ManualClock::pause();
/// let hour = tokio::spawn(tokio::time::sleep(Duration::from_secs(3600)));
/// clock.advance(Duration::from_secs(3600)).await;
/// hour.await.unwrap();
/// assert!(clock.elapsed() >= Duration::from_secs(3600));
/// # });
/// ```
#[derive(Debug)]
pub struct ManualClock {
    started_at: Instant,
}

impl ManualClock {
    /// Stops the clock of the runtime.
    ///
    /// # Panics
    ///
    /// Panics if the clock is stopped already, or if the runtime has several threads.
    pub fn pause() -> Self {
        tokio::time::pause();
        Self {
            started_at: Instant::now(),
        }
    }

    /// Moves the clock. Timers that end in this time have ended when the future resolves; tasks that wait for them run
    /// at the next `await`.
    pub async fn advance(&self, duration: Duration) {
        // Let tasks that were spawned before create their timers.
        tokio::task::yield_now().await;
        tokio::time::advance(duration).await;
    }

    /// Returns the time that has passed on the clock.
    pub fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }
}
