//! Forks: work beside a tape that is merged into it as a whole, or thrown away.
//!
//! What is written inside a fork goes to a journal — a tape of its own, as durable as any other — and the fork shows
//! the parent's entries followed by its own. Merging appends the journal to the parent as one batch, whose last entry
//! carries `meta.fork`; so a merge that was interrupted is neither lost nor done twice. A journal whose owner died is
//! found by [`recover`] when the tape is opened next.

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

pub use self::recover::{ForkRecovery, recover, recover_all};
use self::store::{ForkJournal, ForkStore};
use crate::{
    AnchorQuery, Entry, EntryId, EntryKind, EntryRange, Lease, LeaseWait, ResetRequest, Result,
    Tape, TapeError, TapeName, TapeStore, entry::object,
};

/// The kind of a journal's first entry. It never reaches a tape.
const HEADER_KIND: &str = "fork";

/// What shall become of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBack {
    /// It becomes part of the parent, also when its work failed.
    Yes,
    /// It is thrown away, as for `temp/` sessions.
    No,
}

impl MergeBack {
    /// Temporary sessions (`temp/…`) leave nothing behind, all others are merged.
    pub fn for_session(session_id: &str) -> Self {
        if session_id.starts_with("temp/") {
            Self::No
        } else {
            Self::Yes
        }
    }
}

/// A fork in progress. Dropped without [`finish`](Self::finish) it stays on disk until somebody recovers it.
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

/// What a merge did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeReport {
    /// How many entries reached the tape and its sidecars.
    pub entries: usize,
}

impl Tape {
    /// Opens a fork of this tape and its sidecars.
    pub async fn fork(&self, merge_back: MergeBack) -> Result<Fork> {
        let id = new_id();
        let journal = self.name().fork(&id)?;
        let lease = self.store().lease(&journal, LeaseWait::No).await?;
        let header = ForkHeader {
            merge_back,
            base: self.summary().await?.max_id,
            reset: false,
        };
        self.store().append(&journal, vec![header.entry()]).await?;
        let mut sidecars = Vec::new();
        for sidecar in self.sidecars() {
            let name = self.name().sidecar(&sidecar.name)?;
            let journal = name.fork(&id)?;
            sidecars.push((name, journal));
        }
        let mut managed = vec![ForkJournal::new(self.name().clone(), journal.clone())];
        managed.extend(
            sidecars
                .iter()
                .map(|(name, journal)| ForkJournal::new(name.clone(), journal.clone())),
        );
        let fork_store = ForkStore::new(Arc::clone(self.store()), managed, merge_back);
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
    /// The tape inside the fork.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// The id that marks its merge.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Merges or throws away, as was said when it was opened.
    pub async fn finish(self) -> Result<MergeReport> {
        match self.merge_back {
            MergeBack::Yes => self.merge().await,
            MergeBack::No => self.discard().await.map(|()| MergeReport { entries: 0 }),
        }
    }

    /// Appends everything to the parent: sidecars first, then the tape, each as one batch.
    pub async fn merge(self) -> Result<MergeReport> {
        let merge = ForkMerger {
            store: &*self.parent,
            main: self.tape.name(),
            id: &self.id,
        };
        merge.all(&self.journal, &self.sidecars, Vec::new()).await
    }

    /// Throws everything away.
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
    /// The parent's highest id when the fork was opened.
    base: EntryId,
    /// Whether the parent's content is hidden and replaced at the merge.
    reset: bool,
}

impl ForkHeader {
    fn entry(self) -> Entry {
        let payload = object([
            ("merge_back", (self.merge_back == MergeBack::Yes).into()),
            ("base", json!(self.base)),
            ("reset", self.reset.into()),
        ]);
        Entry::new(EntryKind::from(HEADER_KIND), payload)
    }

    fn read(entry: &Entry) -> Option<Self> {
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

/// Merging journals into the tapes they belong to; every step may be repeated after a crash.
struct ForkMerger<'a> {
    store: &'a dyn TapeStore,
    main: &'a TapeName,
    id: &'a str,
}

impl ForkMerger<'_> {
    /// The main journal goes last: as long as it is there, recovery knows that something is left to do.
    async fn all(
        &self,
        journal: &TapeName,
        sidecars: &[(TapeName, TapeName)],
        mut notes: Vec<Entry>,
    ) -> Result<MergeReport> {
        let mut entries = 0;
        for (target, journal) in sidecars {
            match self.one(target, journal, Vec::new()).await {
                Ok(count) => {
                    entries += count;
                    self.store.discard(journal).await?;
                }
                Err(error) => notes.push(sidecar_failure(target, &error)),
            }
        }
        let failed = notes
            .iter()
            .filter(|note| note.name() == Some("sidecar.merge"))
            .count();
        entries += self.one(self.main, journal, notes).await?;
        if failed == 0 {
            self.store.discard(journal).await?;
        } else {
            // What could not be merged stays for the next recovery, under a journal that is otherwise done.
            tracing::warn!(tape = %self.main, fork = self.id, "fork.sidecar_pending");
        }
        tracing::debug!(tape = %self.main, fork = self.id, entries, "fork.merged");
        Ok(MergeReport { entries })
    }

    /// Merges one journal with some notes behind it, unless that was done before.
    async fn one(&self, target: &TapeName, journal: &TapeName, notes: Vec<Entry>) -> Result<usize> {
        let Some((header, mut batch)) = read_journal(self.store, journal).await? else {
            return Ok(0);
        };
        batch.extend(notes);
        let Some(last) = batch.last_mut() else {
            return Ok(0);
        };
        last.meta.insert("fork".to_owned(), self.id.into());
        if self.was_merged(target, header).await? {
            return Ok(0);
        }
        let count = batch.len();
        if header.reset {
            self.store
                .reset(
                    target,
                    ResetRequest {
                        archive: None,
                        opening: Box::new(move |_| batch),
                    },
                )
                .await?;
        } else {
            self.store.append(target, batch).await?;
        }
        Ok(count)
    }

    /// Looks for the mark of the merge among what was written since the fork was opened.
    async fn was_merged(&self, target: &TapeName, header: ForkHeader) -> Result<bool> {
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
    let Some(header) = entries.first().and_then(ForkHeader::read) else {
        return Ok(None);
    };
    entries.remove(0);
    // Repairs of the journal are nobody's history.
    entries.retain(|entry| entry.name() != Some("tape.repaired"));
    Ok(Some((header, entries)))
}

fn sidecar_failure(target: &TapeName, error: &TapeError) -> Entry {
    tracing::warn!(tape = %target, %error, "sidecar.merge_failed");
    let data = json!({"tape": target.as_str(), "status": "error", "error": error.to_string()});
    Entry::event("sidecar.merge", Some(data)).outside_context()
}

fn new_id() -> String {
    static NEXT_FORK_NUMBER: AtomicU64 = AtomicU64::new(0);
    let count = NEXT_FORK_NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(
        "{:016x}",
        RandomState::new().hash_one((std::process::id(), count))
    )
}

/// Keeps the search type in one place for the overlay.
fn latest_named(name: &str) -> AnchorQuery {
    AnchorQuery::LatestNamed(name.to_owned())
}
