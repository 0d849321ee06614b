//! Telling observers about a failure, which must not make things worse.

use super::{HookPoint, HookSet, args, point::OnError};
use crate::error::Error;

impl HookSet {
    /// Tells every `on_error` implementation; what they fail with is logged and goes no further.
    pub async fn notify_error(&self, args: args::OnError<'_>) {
        for observer in OnError::implementations(self).iter().rev() {
            if let Err(failure) = observer.call(self, args).await {
                log_failure(args.stage, &observer.plugin(), &failure);
            }
        }
    }

    /// The same from code that cannot wait: asynchronous observers are skipped with a warning.
    pub fn notify_error_sync(&self, args: args::OnError<'_>) {
        for observer in OnError::implementations(self).iter().rev() {
            if let Some(Err(failure)) = observer.call_sync(self, args) {
                log_failure(args.stage, &observer.plugin(), &failure);
            }
        }
    }
}

fn log_failure(stage: &str, plugin: &str, failure: &Error) {
    tracing::error!(%stage, adapter = %plugin, error = %failure, "hook.on_error_failed");
}
