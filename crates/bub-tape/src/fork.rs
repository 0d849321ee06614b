//! Forks: branches of a tape that are merged as one batch or discarded.
//!
//! Entries written in a fork go to a fork journal, which is a separate tape with the same durability. The parent is the
//! forked tape. Inside the fork, the tape consists of the parent's entries followed by those of the journal. Merging
//! appends the journal to the parent as one batch. The last entry of the batch has the fork's id in `meta.fork`, so an
//! interrupted merge is neither lost nor repeated. If a process ends during a fork, [`recover_forks`] finds the journal
//! the next time the tape is opened.

mod recover;
mod store;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use futures_util::{StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::recover::{ForkRecovery, recover_forks};
use self::store::ForkStore;
use crate::{
    Entry, EntryId, EntryKind, EntryRange, Lease, LeaseWait, ResetRequest, Result, Tape, TapeError,
    TapeName, TapeStore, entry::json_object,
};

/// The entry kind of a fork journal's header, which is its first entry. The header is never merged.
const HEADER_KIND: &str = "fork";

/// Whether a fork is merged when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBack {
    /// Append the fork's entries to the forked tape, even if the turn failed.
    Yes,
    /// Discard the fork's entries, as for sessions with an id that starts with `temp/`.
    No,
}

/// A fork in progress. If it is dropped without [`finish`](Self::finish), it stays on disk until [`recover_forks`]
/// finishes it.
#[derive(Debug)]
pub struct Fork {
    tape: Tape,
    parent: Arc<dyn TapeStore>,
    journals: ForkJournals,
    merge_back: MergeBack,
    _lease: Lease,
}

/// The result of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeReport {
    /// Number of entries appended to the tape and its sidecars.
    pub entries: usize,
}

impl Tape {
    /// Creates a fork of this tape and its sidecars.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bub_tape::{Entry, MemoryStore, MergeBack, Tape, TapeName};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let tape = Tape::new(Arc::new(MemoryStore::new()), TapeName::new("demo__tape")?);
    /// let fork = tape.fork(MergeBack::Yes).await?;
    /// fork.tape().append(Entry::message("user", "hello")).await?;
    /// assert_eq!(tape.info().await?.entries, 0);
    /// fork.finish().await?;
    /// assert_eq!(tape.info().await?.entries, 1);
    /// # Ok::<(), bub_tape::TapeError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn fork(&self, merge_back: MergeBack) -> Result<Fork> {
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let journal = self.name().fork_journal(&id)?;
        let lease = self.store().lease(&journal, LeaseWait::No).await?;
        let mut sidecars = Vec::new();
        for sidecar in self.sidecars() {
            let name = self.name().sidecar(&sidecar.name)?;
            let journal = name.fork_journal(&id)?;
            sidecars.push((name, journal));
        }
        let parent = Arc::clone(self.store());
        let main = (self.name().clone(), journal);
        let tapes = sidecars.iter().chain([&main]).cloned().collect();
        let fork_store = ForkStore::new(Arc::clone(&parent), merge_back, tapes).await?;
        // The journal of the tape exists from the start, those of sidecars from the first entry on.
        fork_store
            .append_to_journal(self.name(), Vec::new())
            .await?;
        Ok(Fork {
            tape: self.clone().with_store(Arc::new(fork_store)),
            parent,
            journals: ForkJournals { id, main, sidecars },
            merge_back,
            _lease: lease,
        })
    }
}

impl Fork {
    /// Returns the tape inside the fork.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Returns the id of the fork. After the merge, the last merged entry has it in `meta.fork`.
    pub fn id(&self) -> &str {
        &self.journals.id
    }

    /// Merges or discards the fork, depending on the [`MergeBack`] it was created with.
    pub async fn finish(self) -> Result<MergeReport> {
        match self.merge_back {
            MergeBack::Yes => self.merge().await,
            MergeBack::No => self.discard().await.map(|()| MergeReport { entries: 0 }),
        }
    }

    /// Appends the fork's entries to the sidecars and then to the tape, with one batch for each of them.
    pub async fn merge(self) -> Result<MergeReport> {
        self.journals.merge(&*self.parent, Vec::new()).await
    }

    /// Discards the fork's entries, also those for sidecars.
    pub async fn discard(self) -> Result<()> {
        self.journals.discard(&*self.parent).await
    }
}

/// The first entry of a fork journal, the separate tape that holds the entries of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct ForkHeader {
    merge_back: bool,
    /// The highest id on the forked tape when the journal was created.
    base: EntryId,
    /// Whether the tape was reset in the fork. In this case the fork hides the entries of the forked tape, and merging
    /// replaces them.
    reset: bool,
}

impl ForkHeader {
    fn to_entry(self) -> Entry {
        let payload = json_object([
            ("merge_back", self.merge_back.into()),
            ("base", json!(self.base)),
            ("reset", self.reset.into()),
        ]);
        Entry::new(EntryKind::from(HEADER_KIND), payload)
    }

    fn from_entry(entry: &Entry) -> Option<Self> {
        (entry.kind.as_str() == HEADER_KIND).then_some(())?;
        serde_json::from_value(Value::Object(entry.payload.clone())).ok()
    }
}

/// The journals of one fork. After a crash, a merge can be repeated from its start.
#[derive(Debug)]
struct ForkJournals {
    id: String,
    /// The forked tape and its journal. The journal is removed last: as long as it exists, recovery knows that the fork
    /// is unfinished.
    main: (TapeName, TapeName),
    /// The sidecars of the forked tape and their journals.
    sidecars: Vec<(TapeName, TapeName)>,
}

impl ForkJournals {
    /// Removes all journals.
    async fn discard(&self, store: &dyn TapeStore) -> Result<()> {
        for (_, journal) in &self.sidecars {
            store.discard(journal).await?;
        }
        store.discard(&self.main.1).await
    }

    /// Merges the journals of the sidecars, then the journal of the tape. Appends `events` to the tape after the
    /// entries of its journal.
    async fn merge(&self, store: &dyn TapeStore, mut events: Vec<Entry>) -> Result<MergeReport> {
        let (tape, main_journal) = &self.main;
        let (mut entries, mut is_complete) = (0, true);
        for (target, journal) in &self.sidecars {
            match self.merge_journal(store, target, journal, Vec::new()).await {
                Ok(count) => {
                    entries += count;
                    store.discard(journal).await?;
                }
                Err(error) => {
                    events.push(sidecar_error_event(target, &error));
                    is_complete = false;
                }
            }
        }
        entries += self
            .merge_journal(store, tape, main_journal, events)
            .await?;
        if is_complete {
            store.discard(main_journal).await?;
        } else {
            // Keep the journal of the tape, so that the next recovery retries the failed sidecars.
            tracing::warn!(%tape, fork = self.id, "fork.sidecar_pending");
        }
        tracing::debug!(%tape, fork = self.id, entries, "fork.merged");
        Ok(MergeReport { entries })
    }

    /// Appends the entries of one journal and then `events` to `target`, unless the journal is already merged. Returns
    /// the number of appended entries.
    async fn merge_journal(
        &self,
        store: &dyn TapeStore,
        target: &TapeName,
        journal: &TapeName,
        events: Vec<Entry>,
    ) -> Result<usize> {
        let Some((header, mut batch)) = read_journal(store, journal).await? else {
            return Ok(0);
        };
        batch.extend(events);
        let Some(last) = batch.last_mut() else {
            return Ok(0);
        };
        last.meta.insert("fork".to_owned(), self.id.clone().into());
        if self.is_merged(store, target, header).await? {
            return Ok(0);
        }
        let count = batch.len();
        if header.reset {
            let request = ResetRequest::with_entries(batch);
            store.reset(target, request).await?;
        } else {
            store.append(target, batch).await?;
        }
        Ok(count)
    }

    /// Returns whether the fork is already merged into `target`: whether an entry of `target` has the fork's id in
    /// `meta.fork`. Reads only entries since the fork was created, or all entries if the tape was reset in the fork.
    async fn is_merged(
        &self,
        store: &dyn TapeStore,
        target: &TapeName,
        header: ForkHeader,
    ) -> Result<bool> {
        let mut newest = store.read(target, EntryRange::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose()? {
            if entry.meta.get("fork").and_then(Value::as_str) == Some(&self.id) {
                return Ok(true);
            }
            if entry.id <= header.base && !header.reset {
                return Ok(false);
            }
        }
        Ok(false)
    }
}

async fn read_journal(
    store: &dyn TapeStore,
    journal: &TapeName,
) -> Result<Option<(ForkHeader, Vec<Entry>)>> {
    let mut entries: Vec<Entry> = store.read(journal, EntryRange::ALL).try_collect().await?;
    let Some(header) = entries.first().and_then(ForkHeader::from_entry) else {
        return Ok(None);
    };
    // If the first append to a sidecar was cancelled, its journal can have a second header. Events that report repairs
    // of the journal do not belong to the tape.
    entries.retain(|entry| {
        ForkHeader::from_entry(entry).is_none() && entry.name() != Some("tape.repaired")
    });
    Ok(Some((header, entries)))
}

fn sidecar_error_event(target: &TapeName, error: &TapeError) -> Entry {
    tracing::warn!(tape = %target, %error, "sidecar.merge_failed");
    let data = json!({"tape": target.as_str(), "status": "error", "error": error.to_string()});
    Entry::event("sidecar.merge", Some(data)).exclude_from_context()
}
