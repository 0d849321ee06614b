//! Calling the `on_error` implementations of all plugins. Their own failures are logged and ignored.

use super::{HookPoint, HookSet, args, point::OnError};
use crate::error::Error;

impl HookSet {
    /// Calls all `on_error` implementations. Their failures are logged and ignored.
    pub async fn notify_error(&self, args: args::OnError<'_>) {
        for observer in OnError::implementations(self).iter().rev() {
            if let Err(failure) = observer.call(self, args).await {
                log_observer_failure(args.stage, &observer.plugin(), &failure);
            }
        }
    }

    /// Calls all synchronous `on_error` implementations, for code that is not `async`. Skips asynchronous ones with a
    /// warning.
    pub fn notify_error_sync(&self, args: args::OnError<'_>) {
        for observer in OnError::implementations(self).iter().rev() {
            if let Some(Err(failure)) = observer.call_sync(self, args) {
                log_observer_failure(args.stage, &observer.plugin(), &failure);
            }
        }
    }
}

fn log_observer_failure(stage: &str, plugin: &str, failure: &Error) {
    tracing::error!(%stage, adapter = %plugin, error = %failure, "hook.on_error_failed");
}
