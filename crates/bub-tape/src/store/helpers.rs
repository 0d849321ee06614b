//! How the small request types of the contract are answered, the same way in every store.

use std::time::{Duration, Instant};

use crate::{AnchorMark, AnchorQuery, LeaseWait, Result, TapeError, TapeListFilter, TapeName};

impl TapeListFilter {
    /// Whether a tape of that name belongs to the listing.
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
    /// The answer, from all marks in tape order.
    pub fn pick(&self, marks: &[AnchorMark]) -> Vec<AnchorMark> {
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

    /// Tries until it succeeds, fails otherwise than `Busy`, or the time is up.
    ///
    /// Asking again and again instead of blocking in the system: the wait can be cancelled by dropping it, and no thread
    /// keeps a runtime from shutting down.
    pub async fn poll<T>(self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let mut pause = Self::INITIAL_BACKOFF;
        loop {
            let outcome = attempt();
            let waited_enough = match self {
                Self::No => true,
                Self::For(limit) => started.elapsed() >= limit,
                Self::Forever => false,
            };
            if waited_enough || !matches!(outcome, Err(TapeError::Busy { .. })) {
                return outcome;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Self::MAX_BACKOFF);
        }
    }
}
