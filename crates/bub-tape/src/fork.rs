//! Forks: branches of a tape that are merged as one batch or discarded.
//!
//! Entries written in a fork go to a journal, which is a separate tape with the same durability. Inside the fork, the
//! tape consists of the parent's entries followed by those of the journal. Merging appends the journal to the parent as
//! one batch. Its last entry has the fork's id in `meta.fork`, so an interrupted merge is neither lost nor repeated. If
//! a process ends during a fork, [`recover_forks`] finds the journal the next time the tape is opened.

mod recover;
mod store;

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

pub use self::recover::{ForkRecovery, recover_all_forks, recover_forks};
use self::store::{ForkJournal, ForkStore};
use crate::{
    AnchorQuery, Entry, EntryId, EntryKind, EntryRange, Lease, LeaseWait, ResetRequest, Result,
    Tape, TapeError, TapeName, TapeStore, entry::json_object,
};

/// The kind of a journal's first entry. It is never merged.
const HEADER_KIND: &str = "fork";

/// Whether a fork is merged when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBack {
    /// Merge the fork into its parent, even if the turn failed.
    Yes,
    /// Discard the fork, as for `temp/` sessions.
    No,
}

impl MergeBack {
    /// Returns `No` for temporary sessions (`temp/…`) and `Yes` for all others.
    pub fn for_session(session_id: &str) -> Self {
        if session_id.starts_with("temp/") {
            Self::No
        } else {
            Self::Yes
        }
    }
}

/// A fork in progress. If it is dropped without [`finish`](Self::finish), it stays on disk until [`recover_forks`]
/// finishes it.
#[derive(Debug)]
pub struct Fork {
    tape: Tape,
    parent: Arc<dyn TapeStore>,
    journal: TapeName,
    sidecars: Vec<(TapeName, TapeName)>,
    id: String,
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
        let id = new_fork_id();
        let journal = self.name().fork_journal(&id)?;
        let lease = self.store().lease(&journal, LeaseWait::No).await?;
        let header = ForkHeader {
            merge_back,
            base: self.summary().await?.max_id,
            reset: false,
        };
        self.store()
            .append(&journal, vec![header.to_entry()])
            .await?;
        let mut sidecars = Vec::new();
        for sidecar in self.sidecars() {
            let name = self.name().sidecar(&sidecar.name)?;
            let journal = name.fork_journal(&id)?;
            sidecars.push((name, journal));
        }
        let mut journals = vec![ForkJournal::new(self.name().clone(), journal.clone())];
        journals.extend(
            sidecars
                .iter()
                .map(|(name, journal)| ForkJournal::new(name.clone(), journal.clone())),
        );
        let fork_store = ForkStore::new(Arc::clone(self.store()), journals, merge_back);
        let tape = self.clone().with_store(Arc::new(fork_store));
        let parent = Arc::clone(self.store());
        Ok(Fork {
            tape,
            parent,
            journal,
            sidecars,
            id,
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

    /// Returns the id of the fork, which marks its merge on the parent.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Merges or discards the fork, depending on the [`MergeBack`] it was created with.
    pub async fn finish(self) -> Result<MergeReport> {
        match self.merge_back {
            MergeBack::Yes => self.merge().await,
            MergeBack::No => self.discard().await.map(|()| MergeReport { entries: 0 }),
        }
    }

    /// Appends the journals to the parent, first those of sidecars, then that of the tape, each as one batch.
    pub async fn merge(self) -> Result<MergeReport> {
        let merger = ForkMerger {
            store: &*self.parent,
            tape: self.tape.name(),
            id: &self.id,
        };
        merger
            .merge_all(&self.journal, &self.sidecars, Vec::new())
            .await
    }

    /// Discards the journals.
    pub async fn discard(self) -> Result<()> {
        for (_, journal) in &self.sidecars {
            self.parent.discard(journal).await?;
        }
        self.parent.discard(&self.journal).await
    }
}

/// The first entry of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForkHeader {
    merge_back: MergeBack,
    /// The parent's highest id when the fork was created.
    base: EntryId,
    /// Whether the tape was reset in the fork. Then the fork hides the parent's entries, and merging replaces them.
    reset: bool,
}

impl ForkHeader {
    fn to_entry(self) -> Entry {
        let payload = json_object([
            ("merge_back", (self.merge_back == MergeBack::Yes).into()),
            ("base", json!(self.base)),
            ("reset", self.reset.into()),
        ]);
        Entry::new(EntryKind::from(HEADER_KIND), payload)
    }

    fn from_entry(entry: &Entry) -> Option<Self> {
        if entry.kind.as_str() != HEADER_KIND {
            return None;
        }
        let flag = |key: &str| entry.payload.get(key).and_then(Value::as_bool);
        Some(Self {
            merge_back: if flag("merge_back")? {
                MergeBack::Yes
            } else {
                MergeBack::No
            },
            base: EntryId::new(entry.payload.get("base")?.as_i64()?),
            reset: flag("reset")?,
        })
    }
}

/// Merges journals into their tapes. Each step can be repeated after a crash.
struct ForkMerger<'a> {
    store: &'a dyn TapeStore,
    tape: &'a TapeName,
    id: &'a str,
}

impl ForkMerger<'_> {
    /// Merges the journals of the sidecars and then that of the tape, with `events` at its end.
    ///
    /// The journal of the tape is removed last. As long as it exists, recovery knows that the merge is unfinished.
    async fn merge_all(
        &self,
        journal: &TapeName,
        sidecars: &[(TapeName, TapeName)],
        mut events: Vec<Entry>,
    ) -> Result<MergeReport> {
        let mut entries = 0;
        for (target, journal) in sidecars {
            match self.merge_journal(target, journal, Vec::new()).await {
                Ok(count) => {
                    entries += count;
                    self.store.discard(journal).await?;
                }
                Err(error) => events.push(sidecar_error_event(target, &error)),
            }
        }
        let failed_count = events
            .iter()
            .filter(|event| event.name() == Some("sidecar.merge"))
            .count();
        entries += self.merge_journal(self.tape, journal, events).await?;
        if failed_count == 0 {
            self.store.discard(journal).await?;
        } else {
            // Keep the journal of the tape, so that the next recovery retries the failed sidecars.
            tracing::warn!(tape = %self.tape, fork = self.id, "fork.sidecar_pending");
        }
        tracing::debug!(tape = %self.tape, fork = self.id, entries, "fork.merged");
        Ok(MergeReport { entries })
    }

    /// Merges one journal with `events` at its end, unless it is already merged. Returns the number of entries.
    async fn merge_journal(
        &self,
        target: &TapeName,
        journal: &TapeName,
        events: Vec<Entry>,
    ) -> Result<usize> {
        let Some((header, mut batch)) = read_journal(self.store, journal).await? else {
            return Ok(0);
        };
        batch.extend(events);
        let Some(last) = batch.last_mut() else {
            return Ok(0);
        };
        last.meta.insert("fork".to_owned(), self.id.into());
        if self.is_merged(target, header).await? {
            return Ok(0);
        }
        let count = batch.len();
        if header.reset {
            self.store
                .reset(
                    target,
                    ResetRequest {
                        archive: None,
                        initial_entries: Box::new(move |_| batch),
                    },
                )
                .await?;
        } else {
            self.store.append(target, batch).await?;
        }
        Ok(count)
    }

    /// Returns whether the target has an entry with this fork's id since the fork was created.
    async fn is_merged(&self, target: &TapeName, header: ForkHeader) -> Result<bool> {
        let mut newest = self.store.read(target, EntryRange::ALL.newest_first());
        while let Some(entry) = newest.next().await.transpose()? {
            if entry.meta.get("fork").and_then(Value::as_str) == Some(self.id) {
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
    entries.remove(0);
    // Repairs of the journal do not belong to the history of the tape.
    entries.retain(|entry| entry.name() != Some("tape.repaired"));
    Ok(Some((header, entries)))
}

fn sidecar_error_event(target: &TapeName, error: &TapeError) -> Entry {
    tracing::warn!(tape = %target, %error, "sidecar.merge_failed");
    let data = json!({"tape": target.as_str(), "status": "error", "error": error.to_string()});
    Entry::event("sidecar.merge", Some(data)).exclude_from_context()
}

fn new_fork_id() -> String {
    static NEXT_FORK_NUMBER: AtomicU64 = AtomicU64::new(0);
    let count = NEXT_FORK_NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(
        "{:016x}",
        RandomState::new().hash_one((std::process::id(), count))
    )
}

fn latest_anchor_named(name: &str) -> AnchorQuery {
    AnchorQuery::LatestNamed(name.to_owned())
}
