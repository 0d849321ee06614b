//! Requests from tools to the agent loop.

use parking_lot::Mutex;

/// Requests that the agent loop executes between two steps. A handoff during a step would separate the step's tool
/// calls from their results.
#[derive(Debug, Default)]
pub struct StepRequests(Mutex<Vec<StepRequest>>);

/// A request to the agent loop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepRequest {
    /// Add an anchor with a summary.
    HandOff {
        /// The name of the anchor.
        name: String,
        /// The summary.
        summary: String,
    },
    /// Reset the tape.
    Reset {
        /// Whether the entries are kept in an archive.
        archive: bool,
    },
}

impl StepRequests {
    /// Adds a request.
    pub fn add(&self, request: StepRequest) {
        self.0.lock().push(request);
    }

    /// Returns whether a request resets the tape.
    pub fn has_reset(&self) -> bool {
        let is_reset = |request: &StepRequest| matches!(request, StepRequest::Reset { .. });
        self.0.lock().iter().any(is_reset)
    }

    /// Takes all requests.
    pub fn take(&self) -> Vec<StepRequest> {
        std::mem::take(&mut self.0.lock())
    }
}
