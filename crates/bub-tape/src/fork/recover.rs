//! Merges or discards forks whose process ended before it finished them.

use std::collections::BTreeSet;

use serde_json::json;

use super::{ForkJournals, read_journal};
use crate::{Entry, LeaseWait, Result, TapeError, TapeListFilter, TapeName, TapeStore};

/// The result of recovering one unfinished fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRecovery {
    /// The tape that was forked.
    pub tape: TapeName,
    /// The id of the fork.
    pub fork: String,
    /// Number of entries in the fork of the tape, without those of sidecars.
    pub entries: usize,
    /// Whether the entries were merged; otherwise they were discarded.
    pub merged: bool,
}

/// Merges or discards the unfinished forks of a tape, depending on the [`MergeBack`] of each fork. Skips forks in use.
///
/// The tape gets an event `fork.recovered` or `fork.discarded` per fork.
pub async fn recover_forks(store: &dyn TapeStore, tape: &TapeName) -> Result<Vec<ForkRecovery>> {
    let journals = store.list(TapeListFilter::Forks(tape.clone())).await?;
    let ids: BTreeSet<_> = journals
        .iter()
        .filter_map(|name| name.as_fork())
        .map(|(_, id)| id.to_owned())
        .collect();
    let mut recoveries = Vec::new();
    for id in ids {
        match store.lease(&tape.fork_journal(&id)?, LeaseWait::No).await {
            Ok(_lease) => recoveries.extend(recover_fork(store, tape, &id, &journals).await?),
            Err(TapeError::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(recoveries)
}

async fn recover_fork(
    store: &dyn TapeStore,
    tape: &TapeName,
    id: &str,
    journals: &[TapeName],
) -> Result<Option<ForkRecovery>> {
    let main = tape.fork_journal(id)?;
    let mut sidecars = Vec::new();
    for journal in journals.iter().filter(|journal| **journal != main) {
        if let Some((owner, _)) = journal.as_fork().filter(|(_, fork)| *fork == id) {
            sidecars.push((TapeName::new(owner)?, journal.clone()));
        }
    }
    let content = read_journal(store, &main).await?;
    let fork = ForkJournals {
        id: id.to_owned(),
        main: (tape.clone(), main),
        sidecars,
    };
    let Some((header, entries)) = content else {
        // The process ended before the header was written, so no entry was acknowledged.
        fork.discard(store).await?;
        return Ok(None);
    };
    let (merged, count) = (header.merge_back, entries.len());
    if merged {
        let event = recovery_event("fork.recovered", id, count);
        fork.merge(store, vec![event]).await?;
    } else {
        // Do not create a tape only for the event: a temporary session has none.
        if store.summary(tape).await?.entries > 0 {
            let event = recovery_event("fork.discarded", id, count);
            store.append(tape, vec![event]).await?;
        }
        fork.discard(store).await?;
    }
    tracing::info!(%tape, fork = id, entries = count, merged, "fork.recovered");
    Ok(Some(ForkRecovery {
        tape: tape.clone(),
        fork: id.to_owned(),
        entries: count,
        merged,
    }))
}

fn recovery_event(name: &str, id: &str, entries: usize) -> Entry {
    Entry::event(name, Some(json!({"fork": id, "entries": entries}))).exclude_from_context()
}
