//! Stores under observation, and tapes to look at.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, BoxFuture, Durability, Entry, EntryId,
    EntryRange, EntryStream, FileStore, Lease, LeaseWait, LineFilter, MemoryStore, ResetOutcome,
    ResetRequest, Result, Tape, TapeError, TapeListFilter, TapeName, TapeStore, TapeSummary, codec,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The tape of all tests.
pub(crate) fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

/// A tape in a store, which lives as long as this.
pub(crate) struct Place {
    pub(crate) label: &'static str,
    pub(crate) tape: Tape,
    _root: Option<TempDir>,
}

/// The same empty tape in every kind of store.
pub(crate) fn places() -> Vec<Place> {
    let root = tempfile::tempdir().unwrap();
    let file = FileStore::new(root.path(), Durability::Os);
    let place = |label, store: Arc<dyn TapeStore>, root| Place {
        label,
        tape: Tape::new(store, name()),
        _root: root,
    };
    vec![
        place("memory", Arc::new(MemoryStore::new()), None),
        place("file", Arc::new(file), Some(root)),
        place("lines", Arc::new(Spy::new()), None),
    ]
}

/// A tape in memory with these entries.
pub(crate) async fn tape_of(entries: Vec<Entry>) -> Tape {
    let tape = Tape::new(Arc::new(MemoryStore::new()), name());
    tape.store().append(&name(), entries).await.unwrap();
    tape
}

/// The ids of entries, as numbers.
pub(crate) fn ids(entries: &[Entry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id.get()).collect()
}

/// A call of a tool.
pub(crate) fn call(id: &str, tool: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": tool, "arguments": "{}"}})
}

/// Reads a tape's text through the codec.
pub(crate) fn decode(text: &[u8]) -> Vec<Entry> {
    text.split_inclusive(|byte| *byte == b'\n')
        .filter_map(codec::decode)
        .collect()
}

/// A memory store that counts what is read, fails when told to, and sifts lines as a file does.
#[derive(Debug, Default)]
pub(crate) struct Spy {
    inner: MemoryStore,
    pub(crate) read: Arc<AtomicUsize>,
    pub(crate) failure: Mutex<Option<TapeError>>,
}

impl Spy {
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

impl TapeStore for Spy {
    fn list(&self, list_filter: TapeListFilter) -> BoxFuture<'_, Result<Vec<TapeName>>> {
        self.inner.list(list_filter)
    }

    fn append<'a>(
        &'a self,
        tape: &'a TapeName,
        batch: Vec<Entry>,
    ) -> BoxFuture<'a, Result<AppendReceipt>> {
        self.inner.append(tape, batch)
    }

    fn read<'a>(&'a self, tape: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        if let Err(error) = self.check() {
            return Box::pin(stream::iter([Err(error)]));
        }
        let counted = self.inner.read(tape, span).inspect(|_| {
            self.read.fetch_add(1, Ordering::Relaxed);
        });
        Box::pin(counted)
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        let lines = self.read(tape, span).try_filter_map(move |entry| {
            let line = codec::encode(&entry);
            let mut kept = Vec::new();
            line_filter.filter(line.as_bytes(), &mut kept);
            assert!(
                kept.is_empty()
                    || (kept.len() == 1 && kept.iter().all(|kept| *kept == (0..line.len()))),
                "a sieve keeps whole lines"
            );
            let kept = (!kept.is_empty()).then(|| codec::decode(line.as_bytes()).unwrap());
            std::future::ready(Ok(kept))
        });
        Box::pin(lines)
    }

    fn fetch<'a>(
        &'a self,
        tape: &'a TapeName,
        ids: &'a [EntryId],
    ) -> BoxFuture<'a, Result<Vec<Entry>>> {
        self.inner.fetch(tape, ids)
    }

    fn anchors<'a>(
        &'a self,
        tape: &'a TapeName,
        search: AnchorQuery,
    ) -> BoxFuture<'a, Result<Vec<AnchorMark>>> {
        if let Err(error) = self.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.anchors(tape, search)
    }

    fn summary<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<TapeSummary>> {
        self.inner.summary(tape)
    }

    fn archive<'a>(&'a self, tape: &'a TapeName, stamp: &'a str) -> BoxFuture<'a, Result<String>> {
        self.inner.archive(tape, stamp)
    }

    fn reset<'a>(
        &'a self,
        tape: &'a TapeName,
        reset: ResetRequest,
    ) -> BoxFuture<'a, Result<ResetOutcome>> {
        self.inner.reset(tape, reset)
    }

    fn discard<'a>(&'a self, tape: &'a TapeName) -> BoxFuture<'a, Result<()>> {
        self.inner.discard(tape)
    }

    fn lease<'a>(&'a self, tape: &'a TapeName, wait: LeaseWait) -> BoxFuture<'a, Result<Lease>> {
        self.inner.lease(tape, wait)
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.inner.blobs()
    }
}

/// Says what a provider would refuse about these messages; nothing when they are fine.
pub(crate) fn complaint(messages: &[bub_tape::ChatMessage]) -> Option<String> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut waiting: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = text(message.get("role"));
        if !["system", "developer", "user", "assistant", "tool"].contains(&role.as_str()) {
            return Some(format!("message {index} has the role {role:?}"));
        }
        if role == "tool" {
            let id = text(message.get("tool_call_id"));
            let Some(at) = waiting.iter().position(|waiting| *waiting == id) else {
                return Some(format!(
                    "message {index} answers {id:?}, which was not called right before"
                ));
            };
            waiting.remove(at);
            if !message.get("content").is_some_and(Value::is_string) {
                return Some(format!("message {index} has no text"));
            }
            continue;
        }
        if !waiting.is_empty() {
            return Some(format!(
                "message {index} comes before the results of {waiting:?}"
            ));
        }
        let Some(calls) = message.get("tool_calls") else {
            continue;
        };
        let calls = calls.as_array().cloned().unwrap_or_default();
        waiting = calls.iter().map(|call| text(call.get("id"))).collect();
        let distinct: std::collections::HashSet<_> = waiting.iter().collect();
        if waiting.is_empty() || distinct.len() < waiting.len() || waiting.contains(&String::new())
        {
            return Some(format!("message {index} has the calls {waiting:?}"));
        }
    }
    (!waiting.is_empty()).then(|| format!("the calls {waiting:?} have no results"))
}
