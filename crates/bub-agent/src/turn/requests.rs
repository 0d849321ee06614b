//! What tools ask the loop to do once their step is over.

use std::sync::{Mutex, PoisonError};

/// A slot of the state while a step runs: a handoff in the middle of a response would tear its calls from their
/// results.
#[derive(Debug, Default)]
pub(crate) struct StepRequests(Mutex<Vec<StepRequest>>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StepRequest {
    /// A new anchor.
    HandOff { name: String, summary: String },
    /// A new beginning.
    Reset { archive: bool },
}

impl StepRequests {
    /// Asks for something.
    pub(crate) fn add(&self, request: StepRequest) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
    }

    /// Whether the tape is to be emptied.
    pub(crate) fn will_reset(&self) -> bool {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests
            .iter()
            .any(|request| matches!(request, StepRequest::Reset { .. }))
    }

    /// Everything that was asked for.
    pub(crate) fn take(&self) -> Vec<StepRequest> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
