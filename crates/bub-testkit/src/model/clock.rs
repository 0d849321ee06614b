//! A clock that only the test advances, for use with real sockets.

use std::sync::mpsc;
use std::time::Duration;

/// Stops the clock of the current runtime until the test moves it.
///
/// A paused tokio clock jumps to the next timer whenever the runtime has nothing to do. While it waits for a
/// socket it has nothing to do, so every idle timeout would fire at once. The runtime does not jump while a
/// blocking task runs; this guard keeps one running.
pub struct ManualClock {
    _release: mpsc::Sender<()>,
}

impl ManualClock {
    /// Pauses the clock of the current (single-threaded) runtime until the guard is dropped.
    pub fn pause() -> Self {
        let (release, held) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        tokio::time::pause();
        Self { _release: release }
    }

    /// Runs all tasks that have something to read. Call it after the peer has sent its data, before the clock advances.
    ///
    /// While the runtime waits for a blocking task, it polls its sockets. Data passes several tasks: the connection, the
    /// decoder, the reader.
    pub async fn settle(&self) {
        for _ in 0..16 {
            let _ = tokio::task::spawn_blocking(std::thread::yield_now).await;
        }
    }

    /// Advances the clock, then runs the tasks that waited for it.
    pub async fn advance(&self, by: Duration) {
        tokio::time::advance(by).await;
    }
}

impl Drop for ManualClock {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}
