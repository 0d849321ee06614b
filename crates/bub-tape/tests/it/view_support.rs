//! Stores and tapes for tests of views, queries and searches.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Durability, Entry, EntryId, EntryRange,
    EntryStream, FileStore, Lease, LeaseWait, LineFilter, MemoryStore, ResetOutcome, ResetRequest,
    Result, Tape, TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary, async_trait, codec,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns the name of the tape that the tests use.
pub(crate) fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

/// A tape and the temporary directory of its store.
pub(crate) struct StoreFixture {
    pub(crate) label: &'static str,
    pub(crate) tape: Tape,
    _root: Option<TempDir>,
}

/// Returns an empty tape in each kind of store.
pub(crate) fn store_fixtures() -> Vec<StoreFixture> {
    let root = tempfile::tempdir().unwrap();
    let file = FileStore::new(root.path(), Durability::Os);
    let fixture = |label, store: Arc<dyn TapeStore>, root| StoreFixture {
        label,
        tape: Tape::new(store, name()),
        _root: root,
    };
    vec![
        fixture("memory", Arc::new(MemoryStore::new()), None),
        fixture("file", Arc::new(file), Some(root)),
        fixture("lines", Arc::new(CountingStore::new()), None),
    ]
}

/// Returns a tape in memory with these entries.
pub(crate) async fn tape_of(entries: Vec<Entry>) -> Tape {
    let tape = Tape::new(Arc::new(MemoryStore::new()), name());
    tape.store().append(&name(), entries).await.unwrap();
    tape
}

/// Returns the ids of entries as numbers.
pub(crate) fn ids(entries: &[Entry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id.get()).collect()
}

/// Returns a tool call.
pub(crate) fn call(id: &str, tool: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": tool, "arguments": "{}"}})
}

/// A memory store that counts reads, can fail on demand, and filters lines like a file store.
#[derive(Debug, Default)]
pub(crate) struct CountingStore {
    inner: MemoryStore,
    pub(crate) read: Arc<AtomicUsize>,
    pub(crate) failure: Mutex<Option<TapeError>>,
}

impl CountingStore {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn count(&self) -> usize {
        self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn fail_with(&self, error: TapeError) {
        *self.failure.lock().unwrap() = Some(error);
    }

    fn check(&self) -> Result<()> {
        self.failure.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl TapeStore for CountingStore {
    async fn list(&self, list_filter: TapeListFilter) -> Result<Vec<TapeName>> {
        self.inner.list(list_filter).await
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        self.inner.append(tape, batch).await
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        if let Err(error) = self.check() {
            return Box::pin(stream::iter([Err(error)]));
        }
        let counted = self.inner.read(tape, range).inspect(|_| {
            self.read.fetch_add(1, Ordering::Relaxed);
        });
        Box::pin(counted)
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        range: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        let lines = self.read(tape, range).try_filter_map(move |entry| {
            let line = codec::encode(&entry);
            let mut kept = Vec::new();
            line_filter.filter(line.as_bytes(), &mut kept);
            assert!(
                kept.is_empty()
                    || (kept.len() == 1 && kept.iter().all(|kept| *kept == (0..line.len()))),
                "a line filter selects complete lines"
            );
            let kept = (!kept.is_empty()).then(|| codec::decode(line.as_bytes()).unwrap());
            std::future::ready(Ok(kept))
        });
        Box::pin(lines)
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        self.inner.fetch(tape, ids).await
    }

    async fn anchors(&self, tape: &TapeName, query: AnchorQuery) -> Result<Vec<AnchorMark>> {
        self.check()?;
        self.inner.anchors(tape, query).await
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.inner.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.inner.archive(tape, stamp).await
    }

    async fn reset(&self, tape: &TapeName, reset: ResetRequest) -> Result<ResetOutcome> {
        self.inner.reset(tape, reset).await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.inner.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.inner.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.inner.blobs()
    }
}

/// Returns the reason why a provider would reject these messages, or `None` if it accepts them.
pub(crate) fn rejection_reason(messages: &[bub_tape::ChatMessage]) -> Option<String> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut pending: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = text(message.get("role"));
        if !["system", "developer", "user", "assistant", "tool"].contains(&role.as_str()) {
            return Some(format!("message {index} has the role {role:?}"));
        }
        if role == "tool" {
            let id = text(message.get("tool_call_id"));
            let Some(call_index) = pending.iter().position(|pending| *pending == id) else {
                return Some(format!(
                    "message {index} answers {id:?}, which was not called right before"
                ));
            };
            pending.remove(call_index);
            if !message.get("content").is_some_and(Value::is_string) {
                return Some(format!("message {index} has no text"));
            }
            continue;
        }
        if !pending.is_empty() {
            return Some(format!(
                "message {index} comes before the results of {pending:?}"
            ));
        }
        let Some(calls) = message.get("tool_calls") else {
            continue;
        };
        let calls = calls.as_array().cloned().unwrap_or_default();
        pending = calls.iter().map(|call| text(call.get("id"))).collect();
        let distinct: std::collections::HashSet<_> = pending.iter().collect();
        if pending.is_empty() || distinct.len() < pending.len() || pending.contains(&String::new())
        {
            return Some(format!("message {index} has the calls {pending:?}"));
        }
    }
    (!pending.is_empty()).then(|| format!("the calls {pending:?} have no results"))
}
