//! Tape stores and steering inboxes of an external plugin.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bub_kernel::{
    Envelope, Error, Inbound, Provided, Result, ScopeGuard, SessionId, SteeringInbox, async_trait,
};
use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryRange, EntryStream,
    Lease, LeaseWait, MemoryStore, ResetOutcome, ResetRequest, TapeError, TapeListFilter, TapeName,
    TapeStore, TapeSummary, codec as tape_codec,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{codec::Wire as _, process::PluginProcess};

/// Calls the plugin. The limit is that of a hook.
async fn call(plugin: &Arc<PluginProcess>, method: &str, params: Value) -> Result<Value> {
    let limit = plugin.plugin_config.limits.hook;
    plugin.call(method, &params, None, limit).await
}

/// Returns a store whose tapes a plugin keeps.
pub(crate) fn provide_store(plugin: &Arc<PluginProcess>) -> Provided<dyn TapeStore> {
    let store = RemoteTapeStore {
        plugin: Arc::clone(plugin),
        mirror: MemoryStore::new(),
        loaded: tokio::sync::Mutex::default(),
    };
    Provided::with_guard(Arc::new(store), StoreGuard(Arc::clone(plugin)))
}

struct StoreGuard(Arc<PluginProcess>);

impl ScopeGuard for StoreGuard {
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { call(&self.0, "store/close", json!({})).await.map(drop) })
    }
}

/// A tape store of an external plugin.
///
/// The plugin has four operations: list, read, append and reset. Everything else works on a copy of the tape in memory,
/// which is read again when a turn takes the lease of the tape. Leases hold for this process only. Media stay in memory.
struct RemoteTapeStore {
    plugin: Arc<PluginProcess>,
    mirror: MemoryStore,
    /// Tapes that are in `mirror`.
    loaded: tokio::sync::Mutex<HashSet<TapeName>>,
}

impl std::fmt::Debug for RemoteTapeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteTapeStore({})", self.plugin.name())
    }
}

impl RemoteTapeStore {
    async fn call(&self, method: &str, params: Value) -> bub_tape::Result<Value> {
        let answer = call(&self.plugin, method, params).await;
        answer.map_err(|error| TapeError::InvalidInput(error.message().to_owned()))
    }

    /// Reads a tape from the plugin, unless it was read before.
    async fn load(&self, tape: &TapeName) -> bub_tape::Result<()> {
        let mut loaded = self.loaded.lock().await;
        if loaded.contains(tape) {
            return Ok(());
        }
        let answer = self
            .call("store/read", json!({"tape": tape.to_string()}))
            .await?;
        let entries = answer.get("entries").and_then(Value::as_array);
        let lines = entries.into_iter().flatten().map(Value::to_string);
        let entries = lines
            .filter_map(|line| tape_codec::decode(line.as_bytes()))
            .collect();
        self.mirror
            .reset(tape, ResetRequest::with_entries(entries))
            .await?;
        loaded.insert(tape.clone());
        Ok(())
    }

    async fn forward(&self, tape: &TapeName, batch: &[Entry]) -> bub_tape::Result<()> {
        let encode = |entry: &Entry| {
            serde_json::from_str::<Value>(&tape_codec::encode(entry)).unwrap_or_default()
        };
        let entries: Vec<Value> = batch.iter().map(encode).collect();
        let params = json!({"tape": tape.to_string(), "entries": entries});
        self.call("store/append", params).await.map(drop)
    }
}

#[async_trait]
impl TapeStore for RemoteTapeStore {
    async fn list(&self, list_filter: TapeListFilter) -> bub_tape::Result<Vec<TapeName>> {
        let answer = self.call("store/list", json!({})).await?;
        let names = answer.get("tapes").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        let names = names.filter_map(|name| TapeName::new(name).ok());
        Ok(names.filter(|name| list_filter.includes(name)).collect())
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> bub_tape::Result<AppendReceipt> {
        self.load(tape).await?;
        self.forward(tape, &batch).await?;
        self.mirror.append(tape, batch).await
    }

    fn read<'a>(&'a self, tape: &'a TapeName, range: EntryRange) -> EntryStream<'a> {
        use futures_util::{StreamExt as _, TryStreamExt as _};
        let loaded = async move {
            self.load(tape).await?;
            Ok(self.mirror.read(tape, range))
        };
        futures_util::stream::once(loaded).try_flatten().boxed()
    }

    async fn fetch(&self, tape: &TapeName, ids: &[EntryId]) -> bub_tape::Result<Vec<Entry>> {
        self.load(tape).await?;
        self.mirror.fetch(tape, ids).await
    }

    async fn anchors(
        &self,
        tape: &TapeName,
        query: AnchorQuery,
    ) -> bub_tape::Result<Vec<AnchorMark>> {
        self.load(tape).await?;
        self.mirror.anchors(tape, query).await
    }

    async fn summary(&self, tape: &TapeName) -> bub_tape::Result<TapeSummary> {
        self.load(tape).await?;
        self.mirror.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> bub_tape::Result<String> {
        self.load(tape).await?;
        self.mirror.archive(tape, stamp).await
    }

    async fn reset(
        &self,
        tape: &TapeName,
        request: ResetRequest,
    ) -> bub_tape::Result<ResetOutcome> {
        self.load(tape).await?;
        let outcome = self.mirror.reset(tape, request).await?;
        self.call("store/reset", json!({"tape": tape.to_string()}))
            .await?;
        let entries = bub_tape::Tape::new(Arc::new(self.mirror.clone()), tape.clone());
        let entries = entries.entries(EntryRange::ALL).await?;
        self.forward(tape, &entries).await?;
        Ok(outcome)
    }

    async fn discard(&self, tape: &TapeName) -> bub_tape::Result<()> {
        self.mirror.discard(tape).await?;
        self.call("store/reset", json!({"tape": tape.to_string()}))
            .await
            .map(drop)
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> bub_tape::Result<Lease> {
        let lease = self.mirror.lease(tape, wait).await?;
        // Another process may have written to the tape.
        self.loaded.lock().await.remove(tape);
        Ok(lease)
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.mirror.blobs()
    }
}

/// A steering inbox of an external plugin. The plugin keeps the order and the content of messages; the host keeps what
/// belongs to them, such as their sender.
pub(crate) struct RemoteSteeringInbox {
    plugin: Arc<PluginProcess>,
    messages: Mutex<SteeredMessages>,
}

#[derive(Default)]
struct SteeredMessages {
    next_id: u64,
    by_id: HashMap<u64, Inbound>,
    counts: HashMap<SessionId, usize>,
}

/// Field of a message that identifies it while it is in the plugin's inbox.
const STEERING_ID_FIELD: &str = "_steering_id";

impl RemoteSteeringInbox {
    pub(crate) fn new(plugin: &Arc<PluginProcess>) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            messages: Mutex::default(),
        }
    }
}

#[async_trait]
impl SteeringInbox for RemoteSteeringInbox {
    async fn enqueue(&self, session_id: &SessionId, message: Inbound) -> Result<bool> {
        let mut envelope = message.message.clone();
        let id = {
            let mut messages = self.messages.lock();
            messages.next_id += 1;
            let id = messages.next_id;
            messages.by_id.insert(id, message);
            id
        };
        envelope.set(STEERING_ID_FIELD, id);
        let params = json!({"session_id": session_id, "message": envelope.encode()});
        let accepted = call(&self.plugin, "steering/enqueue", params).await;
        let mut messages = self.messages.lock();
        match accepted {
            Ok(answer) if answer.get("accepted") != Some(&Value::Bool(false)) => {
                *messages.counts.entry(session_id.clone()).or_default() += 1;
                Ok(true)
            }
            failed => {
                messages.by_id.remove(&id);
                failed.map(|_| false)
            }
        }
    }

    async fn drain(&self, session_id: &SessionId) -> Result<Vec<Inbound>> {
        let answer = call(
            &self.plugin,
            "steering/drain",
            json!({"session_id": session_id}),
        )
        .await?;
        let Some(Value::Array(drained)) = answer.get("messages") else {
            return Err(Error::unknown(
                "invalid response to `steering/drain`: expected `messages`",
            ));
        };
        let mut messages = self.messages.lock();
        messages.counts.remove(session_id);
        let restore = |value: &Value| {
            let mut fields = value.clone();
            let id = fields
                .as_object_mut()
                .and_then(|fields| fields.remove(STEERING_ID_FIELD));
            let known = id.and_then(|id| messages.by_id.remove(&id.as_u64()?));
            // The plugin can add its own message, from a guest.
            let mut inbound = known.unwrap_or_default();
            inbound.message = Envelope::from_value(fields);
            inbound
        };
        Ok(drained.iter().map(restore).collect())
    }

    fn count(&self, session_id: &SessionId) -> usize {
        self.messages
            .lock()
            .counts
            .get(session_id)
            .copied()
            .unwrap_or_default()
    }
}
