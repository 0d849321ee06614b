//! The handle of one tape: a store, a name, and what is done with them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    AnchorMark, AnchorQuery, AppendReceipt, Entry, EntryId, EntryRange, Lease, LeaseWait, Result,
    SessionInfo, Sidecar, TapeContext, TapeError, TapeName, TapeStore, TapeSummary, media,
};

/// One tape in one store. Cloning it is cheap; clones are the same tape.
#[derive(Debug, Clone)]
pub struct Tape {
    store: Arc<dyn TapeStore>,
    name: TapeName,
    sidecars: Arc<[Sidecar]>,
    context: TapeContext,
}

/// What `tape.info` reports.
#[derive(Debug, Clone, PartialEq)]
pub struct TapeInfo {
    /// How many entries there are.
    pub entries: u64,
    /// How many of them are anchors.
    pub anchors: u64,
    /// The name of the latest anchor.
    pub last_anchor: Option<String>,
    /// How many entries follow it.
    pub entries_since_last_anchor: u64,
    /// `total_tokens` of the newest `run` event that has usage.
    pub last_token_usage: Option<i64>,
    /// The share of its prompt that came from a cache.
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

/// What a reset of a tape and its sidecars did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetReport {
    /// Where the old content is kept.
    pub archived: Option<String>,
}

impl Tape {
    /// A tape without sidecars, with the default context.
    pub fn new(store: Arc<dyn TapeStore>, name: TapeName) -> Self {
        Self {
            store,
            name,
            sidecars: Arc::default(),
            context: TapeContext::new(),
        }
    }

    /// The same tape with these sidecars.
    #[must_use]
    pub fn with_sidecars(mut self, sidecars: impl IntoIterator<Item = Sidecar>) -> Self {
        self.sidecars = sidecars.into_iter().collect();
        self
    }

    /// The same tape with another context.
    #[must_use]
    pub fn with_context(mut self, context: TapeContext) -> Self {
        self.context = context;
        self
    }

    /// The same tape seen through another store, such as a fork.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn TapeStore>) -> Self {
        self.store = store;
        self
    }

    /// Its name.
    pub fn name(&self) -> &TapeName {
        &self.name
    }

    /// The store it lives in.
    pub fn store(&self) -> &Arc<dyn TapeStore> {
        &self.store
    }

    /// How its view is made.
    pub fn context(&self) -> &TapeContext {
        &self.context
    }

    /// Its sidecars.
    pub fn sidecars(&self) -> &[Sidecar] {
        &self.sidecars
    }

    /// The tape of a mounted sidecar.
    pub fn sidecar(&self, name: &str) -> Result<Self> {
        if !self.sidecars.iter().any(|sidecar| sidecar.name == name) {
            return Err(TapeError::NotFound(format!(
                "Sidecar '{name}' was not found."
            )));
        }
        Ok(Self::new(Arc::clone(&self.store), self.name.sidecar(name)?))
    }

    /// Appends one entry and returns its id.
    pub async fn append(&self, entry: Entry) -> Result<EntryId> {
        let appended = self.append_all(vec![entry]).await?;
        Ok(appended.last().unwrap_or_default())
    }

    /// Appends a batch, whole or not at all. Media become blobs first, so that an entry never refers to what is not
    /// there.
    pub async fn append_all(&self, batch: Vec<Entry>) -> Result<AppendReceipt> {
        let blobs = self.store.blobs();
        let mut stored = Vec::with_capacity(batch.len());
        for entry in batch {
            stored.push(media::detach(&*blobs, entry).await?);
        }
        self.store.append(&self.name, stored).await
    }

    /// Appends an event.
    pub async fn event(&self, name: &str, data: Value) -> Result<EntryId> {
        self.append(Entry::event(name, Some(data))).await
    }

    /// Writes an anchor and its `handoff` event and returns the anchor's id. Views start there from now on.
    pub async fn handoff(&self, name: &str, state: Option<Value>) -> Result<EntryId> {
        let appended = self
            .append_all(handoff_entries(name, state, Map::new()))
            .await?;
        Ok(appended.ids.first().copied().unwrap_or_default())
    }

    /// Before the first turn: writes `session/start` when there is no anchor, and records whose tape it is when that is
    /// not known yet.
    pub async fn ensure_bootstrap(&self, session: &SessionInfo) -> Result<()> {
        match session.bootstrap_entries(&self.summary().await?) {
            batch if batch.is_empty() => Ok(()),
            batch => self.append_all(batch).await.map(drop),
        }
    }

    /// What the index knows about the tape.
    pub async fn summary(&self) -> Result<TapeSummary> {
        self.store.summary(&self.name).await
    }

    /// The figures of `tape.info`.
    pub async fn info(&self) -> Result<TapeInfo> {
        Ok(self.summary().await?.into())
    }

    /// Anchors without their state, in tape order.
    pub async fn marks(&self, search: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.store.anchors(&self.name, search).await
    }

    /// The latest anchors as entries, in tape order, at most so many.
    pub async fn anchors(&self, limit: usize) -> Result<Vec<Entry>> {
        let marks = self.marks(AnchorQuery::Latest(limit)).await?;
        let mut anchors = Vec::with_capacity(marks.len());
        for mark in marks {
            anchors.extend(self.first_of(EntryRange::from(mark.position)).await?);
        }
        Ok(anchors)
    }

    /// The first entry of a stretch.
    pub async fn first_of(&self, span: EntryRange) -> Result<Option<Entry>> {
        use futures_util::StreamExt as _;
        self.store.read(&self.name, span).next().await.transpose()
    }

    /// The entries of a stretch, collected. For what may be long, read from the store instead.
    pub async fn entries(&self, span: EntryRange) -> Result<Vec<Entry>> {
        use futures_util::TryStreamExt as _;
        self.store.read(&self.name, span).try_collect().await
    }

    /// Takes the session lease.
    pub async fn lease(&self, wait: LeaseWait) -> Result<Lease> {
        self.store.lease(&self.name, wait).await
    }
}

/// The two entries of a handoff, for a batch with more in it; `meta` goes to the anchor.
pub fn handoff_entries(name: &str, state: Option<Value>, meta: Map<String, Value>) -> Vec<Entry> {
    let event_state = state.clone().unwrap_or_else(|| json!({}));
    let mut anchor = Entry::anchor(name, state);
    anchor.meta = meta;
    vec![
        anchor,
        Entry::event("handoff", Some(json!({"name": name, "state": event_state}))),
    ]
}
