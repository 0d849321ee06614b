//! Methods of the arguments of [`TapeStore`](crate::TapeStore): list filters, anchor queries and lease waits. Every
//! store needs them, so they are not part of one store.

use std::time::{Duration, Instant};

use crate::{AnchorMark, AnchorQuery, LeaseWait, Result, TapeError, TapeListFilter, TapeName};

impl TapeListFilter {
    /// Returns whether the filter selects a tape with this name.
    pub fn includes(&self, name: &TapeName) -> bool {
        match self {
            Self::Sessions | Self::SessionsSince(_) => name.is_session(),
            Self::AllForks => name.is_fork(),
            Self::AllSidecars => name.as_sidecar().is_some(),
            Self::Sidecars(tape) => name
                .as_sidecar()
                .is_some_and(|(owner, _)| owner == tape.as_str()),
            Self::Forks(tape) => name.as_fork().is_some_and(|(owner, _)| {
                owner == tape.as_str()
                    || owner
                        .split_once("__sidecar__")
                        .is_some_and(|(owner, _)| owner == tape.as_str())
            }),
        }
    }
}

impl AnchorQuery {
    /// Returns the marks that the query selects. `marks` must contain all anchors of a tape in tape order.
    pub fn select_marks(&self, marks: &[AnchorMark]) -> Vec<AnchorMark> {
        match self {
            Self::All => marks.to_vec(),
            Self::Latest(count) => marks
                .get(marks.len().saturating_sub(*count)..)
                .unwrap_or_default()
                .to_vec(),
            Self::LatestNamed(name) => marks
                .iter()
                .rfind(|mark| mark.name == *name)
                .cloned()
                .into_iter()
                .collect(),
            Self::FirstNamedAfter(name, after) => {
                let first = marks
                    .iter()
                    .find(|mark| mark.position > *after && mark.name == *name);
                first.cloned().into_iter().collect()
            }
        }
    }
}

impl LeaseWait {
    const INITIAL_BACKOFF: Duration = Duration::from_millis(1);
    const MAX_BACKOFF: Duration = Duration::from_millis(25);

    /// Repeats `attempt` with backoff until it returns anything but [`TapeError::Busy`], or the wait is over.
    ///
    /// It polls instead of blocking in the operating system. Dropping the future cancels the wait, and no blocked
    /// thread keeps the runtime from shutting down.
    pub async fn retry_while_busy<T>(self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let mut backoff = Self::INITIAL_BACKOFF;
        loop {
            let outcome = attempt();
            let is_expired = match self {
                Self::No => true,
                Self::For(timeout) => started.elapsed() >= timeout,
                Self::Forever => false,
            };
            if is_expired || !matches!(outcome, Err(TapeError::Busy { .. })) {
                return outcome;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(Self::MAX_BACKOFF);
        }
    }
}
