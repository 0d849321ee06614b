//! The handle of one tape.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, Entry, EntryId, EntryRange, Lease, LeaseWait, Result,
    SessionInfo, Sidecar, TapeContext, TapeError, TapeName, TapeStore, TapeSummary, media,
};

/// A handle to one tape in a store. Clones are cheap and refer to the same tape.
///
/// ```
/// use std::sync::Arc;
/// use bub_tape::{Entry, EntryRange, MemoryStore, Tape, TapeName};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let tape = Tape::new(Arc::new(MemoryStore::new()), TapeName::new("demo__tape")?);
/// tape.append(Entry::message("user", "hello")).await?;
/// tape.handoff("summary", None).await?;
/// assert_eq!(tape.entries(EntryRange::ALL).await?.len(), 3);
/// # Ok::<(), bub_tape::TapeError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tape {
    store: Arc<dyn TapeStore>,
    name: TapeName,
    sidecars: Arc<[Sidecar]>,
    context: TapeContext,
}

/// The statistics that the tool `tape.info` reports.
#[derive(Debug, Clone, PartialEq)]
pub struct TapeInfo {
    /// Number of entries.
    pub entries: u64,
    /// Number of anchors.
    pub anchors: u64,
    /// The name of the latest anchor.
    pub last_anchor: Option<String>,
    /// Number of entries after the latest anchor.
    pub entries_since_last_anchor: u64,
    /// `total_tokens` of the newest `run` event that reports usage.
    pub last_token_usage: Option<i64>,
    /// The fraction of prompt tokens that the provider read from its cache, from 0 to 1. It comes from the same `run`
    /// event as `last_token_usage`.
    pub cache_hit_rate: Option<f64>,
}

impl From<TapeSummary> for TapeInfo {
    fn from(summary: TapeSummary) -> Self {
        Self {
            entries: summary.entries,
            anchors: summary.anchors,
            last_anchor: summary.last_anchor.map(|mark| mark.name),
            entries_since_last_anchor: summary.entries_since_last_anchor,
            last_token_usage: summary.usage.map(|usage| usage.total_tokens),
            cache_hit_rate: summary.usage.and_then(|usage| usage.cache_hit_rate()),
        }
    }
}

/// The result of resetting a tape and its sidecars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetReport {
    /// The name of the archive with the old entries, if one was written.
    pub archived: Option<String>,
}

impl Tape {
    /// Creates a handle without sidecars and with the default [`TapeContext`].
    pub fn new(store: Arc<dyn TapeStore>, name: TapeName) -> Self {
        Self {
            store,
            name,
            sidecars: Arc::default(),
            context: TapeContext::new(),
        }
    }

    /// Sets the sidecars.
    #[must_use]
    pub fn with_sidecars(mut self, sidecars: impl IntoIterator<Item = Sidecar>) -> Self {
        self.sidecars = sidecars.into_iter().collect();
        self
    }

    /// Sets the context, which selects the entries of a view.
    #[must_use]
    pub fn with_context(mut self, context: TapeContext) -> Self {
        self.context = context;
        self
    }

    /// Sets the store, for example to the store inside a fork.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn TapeStore>) -> Self {
        self.store = store;
        self
    }

    /// Returns the name of the tape.
    pub fn name(&self) -> &TapeName {
        &self.name
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn TapeStore> {
        &self.store
    }

    /// Returns the context, which selects the entries of a view.
    pub fn context(&self) -> &TapeContext {
        &self.context
    }

    /// Returns the sidecars.
    pub fn sidecars(&self) -> &[Sidecar] {
        &self.sidecars
    }

    /// Returns a handle to the tape of a sidecar.
    ///
    /// # Errors
    ///
    /// Fails with [`TapeError::NotFound`] if this tape has no sidecar with this name.
    pub fn sidecar(&self, name: &str) -> Result<Self> {
        if !self.sidecars.iter().any(|sidecar| sidecar.name == name) {
            let names: Vec<_> = self.sidecars.iter().map(|sidecar| &*sidecar.name).collect();
            let mut names = names.join(", ");
            if names.is_empty() {
                names.push_str("none");
            }
            return Err(TapeError::NotFound(format!(
                "unknown sidecar `{name}`; available sidecars: {names}"
            )));
        }
        Ok(Self::new(Arc::clone(&self.store), self.name.sidecar(name)?))
    }

    /// Appends one entry and returns its id.
    pub async fn append(&self, entry: Entry) -> Result<EntryId> {
        let receipt = self.append_all(vec![entry]).await?;
        Ok(receipt.ids.last().copied().unwrap_or_default())
    }

    /// Appends a batch atomically.
    ///
    /// Media are stored as blobs first, so that an entry never refers to a missing blob.
    pub async fn append_all(&self, batch: Vec<Entry>) -> Result<AppendReceipt> {
        let blobs = self.store.blobs();
        let mut stored = Vec::with_capacity(batch.len());
        for entry in batch {
            stored.push(media::detach_media(&*blobs, entry).await?);
        }
        self.store.append(&self.name, stored).await
    }

    /// Appends an event.
    pub async fn append_event(&self, name: &str, data: Value) -> Result<EntryId> {
        self.append(Entry::event(name, Some(data))).await
    }

    /// Appends an anchor and its `handoff` event. Later views start at the anchor. Returns the anchor's id.
    pub async fn handoff(&self, name: &str, state: Option<Value>) -> Result<EntryId> {
        let receipt = self
            .append_all(handoff_entries(name, state, Map::new()))
            .await?;
        Ok(receipt.ids.first().copied().unwrap_or_default())
    }

    /// Prepares the tape for its first turn. Appends the `session/start` anchor if the tape has no anchor, and records
    /// the session's id, workspace and channel if the tape does not contain them yet.
    pub async fn ensure_bootstrap(&self, session: &SessionInfo) -> Result<()> {
        match session.bootstrap_entries(&self.summary().await?) {
            batch if batch.is_empty() => Ok(()),
            batch => self.append_all(batch).await.map(drop),
        }
    }

    /// Returns the summary from the tape's index.
    pub async fn summary(&self) -> Result<TapeSummary> {
        self.store.summary(&self.name).await
    }

    /// Returns the statistics that the tool `tape.info` reports.
    pub async fn info(&self) -> Result<TapeInfo> {
        Ok(self.summary().await?.into())
    }

    /// Returns the selected anchors without their state, in tape order.
    pub async fn anchor_marks(&self, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.store.anchors(&self.name, query).await
    }

    /// Returns the entries of the latest anchors in tape order, at most `limit`.
    pub async fn anchors(&self, limit: usize) -> Result<Vec<Entry>> {
        let marks = self.anchor_marks(AnchorQuery::Latest(limit)).await?;
        let mut anchors = Vec::with_capacity(marks.len());
        for mark in marks {
            let range = EntryRange::starting_at(mark.position);
            anchors.extend(self.first_entry(range).await?);
        }
        Ok(anchors)
    }

    /// Returns the first entry of a range.
    pub async fn first_entry(&self, range: EntryRange) -> Result<Option<Entry>> {
        use futures_util::StreamExt as _;
        self.store.read(&self.name, range).next().await.transpose()
    }

    /// Returns all entries of a range. If the range may be long, use [`TapeStore::read`] instead.
    pub async fn entries(&self, range: EntryRange) -> Result<Vec<Entry>> {
        use futures_util::TryStreamExt as _;
        self.store.read(&self.name, range).try_collect().await
    }

    /// Acquires the session lease.
    pub async fn lease(&self, wait: LeaseWait) -> Result<Lease> {
        self.store.lease(&self.name, wait).await
    }
}

/// Creates the two entries of a handoff, the anchor and its event. `meta` is the anchor's metadata.
pub fn handoff_entries(name: &str, state: Option<Value>, meta: Map<String, Value>) -> Vec<Entry> {
    let event_state = state.clone().unwrap_or_else(|| json!({}));
    let mut anchor = Entry::anchor(name, state);
    anchor.meta = meta;
    vec![
        anchor,
        Entry::event("handoff", Some(json!({"name": name, "state": event_state}))),
    ]
}
