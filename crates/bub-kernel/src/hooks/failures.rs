//! The failures of plugins. Many of them are isolated, so that a turn continues; a replay must know about them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::HookSet;
use crate::error::Error;

/// The first failure of each plugin.
#[derive(Default)]
pub(super) struct Failures(Mutex<Vec<(Arc<str>, Error)>>);

impl HookSet {
    /// Records a failure of a plugin: its hook failed, or it cannot be reached. Only the first one of a plugin is kept.
    pub fn record_failure(&self, plugin: &str, error: &Error) {
        let mut failures = self.failures.0.lock();
        if failures.iter().all(|(failed, _)| **failed != *plugin) {
            failures.push((plugin.into(), error.clone()));
        }
    }

    /// Returns the plugins that failed since the start of the program, each with its first failure.
    pub fn failures(&self) -> Vec<(Arc<str>, Error)> {
        self.failures.0.lock().clone()
    }
}
