//! Forks whose owner died.

use std::collections::BTreeSet;

use serde_json::json;

use super::{ForkMerger, MergeBack, read_journal};
use crate::{Entry, LeaseWait, Result, TapeError, TapeListFilter, TapeName, TapeStore};

/// What became of a fork that nobody finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkRecovery {
    /// The tape it belonged to.
    pub tape: TapeName,
    /// Its id.
    pub fork: String,
    /// How many entries it held.
    pub entries: usize,
    /// Whether they were merged; otherwise they were thrown away.
    pub merged: bool,
}

/// Finishes the abandoned forks of a tape as they were meant to end, and says so on the tape: with an event
/// `fork.recovered` or `fork.discarded`. Forks that are still in use are left alone.
pub async fn recover(store: &dyn TapeStore, tape: &TapeName) -> Result<Vec<ForkRecovery>> {
    let journals = store.list(TapeListFilter::Forks(tape.clone())).await?;
    let ids: BTreeSet<_> = journals
        .iter()
        .filter_map(|name| name.as_fork())
        .map(|(_, id)| id.to_owned())
        .collect();
    let mut recovered = Vec::new();
    for id in ids {
        let lease = match store.lease(&tape.fork(&id)?, LeaseWait::No).await {
            Ok(lease) => lease,
            Err(TapeError::Busy { .. }) => continue,
            Err(error) => return Err(error),
        };
        recovered.extend(recover_one(store, tape, &id, &journals).await?);
        drop(lease);
    }
    Ok(recovered)
}

/// [`recover`] for every tape of a store.
pub async fn recover_all(store: &dyn TapeStore) -> Result<Vec<ForkRecovery>> {
    let journals = store.list(TapeListFilter::AllForks).await?;
    let owners: BTreeSet<_> = journals
        .iter()
        .filter_map(|name| name.as_fork())
        .map(|(owner, _)| main_tape(owner))
        .collect();
    let mut recovered = Vec::new();
    for owner in owners {
        recovered.extend(recover(store, &TapeName::new(owner)?).await?);
    }
    Ok(recovered)
}

fn main_tape(owner: &str) -> &str {
    owner
        .split_once("__sidecar__")
        .map_or(owner, |(main, _)| main)
}

async fn recover_one(
    store: &dyn TapeStore,
    tape: &TapeName,
    id: &str,
    journals: &[TapeName],
) -> Result<Option<ForkRecovery>> {
    let main = tape.fork(id)?;
    let mut sidecars = Vec::new();
    for journal in journals.iter().filter(|journal| **journal != main) {
        if let Some((owner, _)) = journal.as_fork().filter(|(_, fork)| *fork == id) {
            sidecars.push((TapeName::new(owner)?, journal.clone()));
        }
    }
    let Some((header, entries)) = read_journal(store, &main).await? else {
        // It died before its journal said anything: nothing was acknowledged in it.
        discard(store, &main, &sidecars).await?;
        return Ok(None);
    };
    let merged = header.merge_back == MergeBack::Yes;
    let count = entries.len();
    if merged {
        let note = recovery_event("fork.recovered", id, count);
        ForkMerger {
            store,
            main: tape,
            id,
        }
        .all(&main, &sidecars, vec![note])
        .await?;
    } else {
        // A temporary session leaves no tape behind, so there is nothing to note it on.
        if store.summary(tape).await?.entries > 0 {
            store
                .append(tape, vec![recovery_event("fork.discarded", id, count)])
                .await?;
        }
        discard(store, &main, &sidecars).await?;
    }
    tracing::info!(%tape, fork = id, entries = count, merged, "fork.recovered");
    Ok(Some(ForkRecovery {
        tape: tape.clone(),
        fork: id.to_owned(),
        entries: count,
        merged,
    }))
}

async fn discard(
    store: &dyn TapeStore,
    main: &TapeName,
    sidecars: &[(TapeName, TapeName)],
) -> Result<()> {
    for (_, journal) in sidecars {
        store.discard(journal).await?;
    }
    store.discard(main).await
}

fn recovery_event(name: &str, id: &str, entries: usize) -> Entry {
    Entry::event(name, Some(json!({"fork": id, "entries": entries}))).outside_context()
}
