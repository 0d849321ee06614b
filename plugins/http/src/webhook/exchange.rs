//! Matches messages with their replies, and keeps both until a limit is reached.
//!
//! An exchange is one message and its replies. The request that posts the message creates the exchange, or the first
//! reply does if it arrives earlier: after a restart, or if the turn is very fast. The number and size of exchanges are
//! bounded. Removing an exchange loses no message, because messages are in the gateway's journal.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bub::kernel::{InboundReceipt, MessageId, MessageOutcome, Outbound, ReplyId, Turn};
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};

use super::options::WebhookOptions;

/// Maximum number of buffered text deltas. A text delta is the text that an answer grows by while the model writes it.
/// A slow reader skips older deltas.
const DELTA_CAPACITY: usize = 256;
/// How long the delivery of a reply waits until the waiting requests have received the reply.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the delivery of a reply waits while no request waits for the reply. A client that lost its connection
/// retries soon.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the delivery of a reply waits for the end of the turn, to find out whether more replies follow.
const TURN_END_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum number of joins to follow. A message joins another message if it becomes part of that message's turn.
const MAX_JOIN_DEPTH: usize = 8;

/// All exchanges that are kept.
pub(super) struct ExchangeStore {
    table: Mutex<ExchangeTable>,
    max_count: usize,
    max_bytes: usize,
    max_age: Duration,
}

#[derive(Default)]
struct ExchangeTable {
    by_id: HashMap<MessageId, Arc<Exchange>>,
    /// Exchanges whose message is not accepted yet, so it has no id.
    unnamed: Vec<Arc<Exchange>>,
    /// All exchanges with an id, oldest first.
    order: VecDeque<(Instant, Arc<Exchange>)>,
    bytes: usize,
}

/// One message and its replies.
pub(super) struct Exchange {
    id: OnceLock<MessageId>,
    receipt: OnceLock<Arc<InboundReceipt>>,
    fingerprint: OnceLock<u64>,
    callback: OnceLock<String>,
    outbounds: watch::Sender<Vec<ExchangeReply>>,
    waiting: watch::Sender<usize>,
    /// Number of replies that were written to a connection.
    written: watch::Sender<usize>,
    deltas: OnceLock<broadcast::Sender<String>>,
}

/// A reply as clients see it.
#[derive(Clone, Debug)]
pub(super) struct ExchangeReply {
    /// Id of the reply. It does not change between delivery attempts.
    pub(super) reply_id: ReplyId,
    value: Arc<Value>,
}

impl ExchangeReply {
    pub(super) fn new(outbound: &Outbound) -> Self {
        let kind = outbound.kind();
        let mut value = json!({"content": outbound.content(), "kind": kind.name()});
        for name in ["chat_id", "session_id", "media"] {
            if let (Value::Object(map), Some(field)) = (&mut value, outbound.field(name)) {
                map.insert(name.to_owned(), field.clone());
            }
        }
        let attempt = outbound.attempt.as_ref();
        let reply_id = attempt.map(|attempt| attempt.reply_id.clone());
        let reply_id = reply_id.unwrap_or_default();
        Self {
            reply_id,
            value: Arc::new(value),
        }
    }

    pub(super) fn content(&self) -> &str {
        self.value
            .get("content")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    pub(super) fn is_error(&self) -> bool {
        self.has_kind("error")
    }

    /// Returns whether the reply asks for approval of a tool call.
    pub(super) fn is_question(&self) -> bool {
        self.has_kind("approval")
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.value.get("kind").and_then(Value::as_str) == Some(kind)
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }
}

/// Progress of an exchange.
#[derive(Clone, Debug)]
pub(super) enum ExchangeStatus {
    Pending,
    Answered(Vec<ExchangeReply>),
    /// Answered earlier; the reply is no longer available.
    Delivered,
    Dropped(String),
}

impl ExchangeStore {
    pub(super) fn new(options: &WebhookOptions) -> Self {
        Self {
            table: Mutex::default(),
            max_count: options.kept,
            max_bytes: options.kept_bytes,
            max_age: options.kept_for,
        }
    }

    /// Starts the exchange of a message that has no id yet.
    pub(super) fn begin(self: &Arc<Self>, request: ExchangeRequest) -> PendingExchange {
        let exchange = Arc::new(Exchange::new());
        exchange.set_request(request);
        self.lock_table().unnamed.push(Arc::clone(&exchange));
        PendingExchange {
            exchanges: Arc::clone(self),
            exchange,
        }
    }

    pub(super) fn find_by_id(&self, id: &str) -> Option<Arc<Exchange>> {
        self.lock_table().by_id.get(id).cloned()
    }

    /// Returns the exchange of the inbound message of a turn. Searches by receipt first, because a fast turn can start
    /// before its exchange has an id, and then by message id.
    pub(super) fn find_by_turn(&self, turn: &Turn) -> Option<Arc<Exchange>> {
        let table = self.lock_table();
        let receipt = turn.inbound().receipt.as_ref();
        let has_receipt = |exchange: &&Arc<Exchange>| match (exchange.receipt.get(), receipt) {
            (Some(exchange_receipt), Some(receipt)) => Arc::ptr_eq(exchange_receipt, receipt),
            _ => false,
        };
        let unnamed = table.unnamed.iter().find(has_receipt);
        let id = || turn.message_id().or_else(|| receipt?.message_id());
        let named = || table.by_id.get(id()?);
        unnamed.or_else(named).cloned()
    }

    /// Returns the exchange of the message with this id. Creates it if necessary.
    pub(super) fn get_or_create(&self, id: &MessageId) -> Arc<Exchange> {
        let mut table = self.lock_table();
        if let Some(exchange) = table.by_id.get(id) {
            return Arc::clone(exchange);
        }
        let exchange = Arc::new(Exchange::new());
        self.insert_with_id(&mut table, id, exchange)
    }

    /// Assigns a message id to an exchange and returns the exchange. If another exchange already has the id, merges the
    /// request into that exchange and returns it. This happens if the message is a duplicate or its reply was fast.
    pub(super) fn assign_id(&self, exchange: &Arc<Exchange>, id: &MessageId) -> Arc<Exchange> {
        let mut table = self.lock_table();
        match table.by_id.get(id).cloned() {
            Some(existing) => {
                existing.merge_request(exchange);
                existing
            }
            None => self.insert_with_id(&mut table, id, Arc::clone(exchange)),
        }
    }

    /// Adds a reply to an exchange. Ignores a reply whose id the exchange already has.
    pub(super) fn add_reply(&self, exchange: &Exchange, reply: &ExchangeReply) {
        let is_new = exchange.outbounds.send_if_modified(|all| {
            let is_duplicate = |other: &ExchangeReply| {
                !other.reply_id.is_empty() && other.reply_id == reply.reply_id
            };
            let is_new = !all.iter().any(is_duplicate);
            if is_new {
                all.push(reply.clone());
            }
            is_new
        });
        if is_new {
            let mut table = self.lock_table();
            table.bytes += reply.content().len();
            self.evict_over_limit(&mut table);
        }
    }

    /// Removes exchanges that are older than the maximum age or exceed the limits.
    pub(super) fn evict_expired(&self) {
        self.evict_over_limit(&mut self.lock_table());
    }

    /// Returns the current status of an exchange. If its message joined another message, this is the status of that
    /// message's exchange.
    pub(super) fn status(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        self.wait_for_answer(exchange)
            .now_or_never()
            .unwrap_or(ExchangeStatus::Pending)
    }

    /// Waits until the outcome of the message is known and all its replies have arrived. Without a receipt, waits only
    /// for the first reply.
    pub(super) async fn wait_for_answer(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        let mut exchange = Arc::clone(exchange);
        for _ in 0..MAX_JOIN_DEPTH {
            let mut outbounds = exchange.outbounds.subscribe();
            let outcome = match exchange.receipt.get() {
                Some(receipt) if !receipt.is_duplicate() => receipt.outcome().await,
                Some(receipt) => tokio::select! {
                    biased;
                    _ = outbounds.wait_for(|all| all.len() >= receipt.unclaimed_replies().max(1)) => single_reply_outcome(),
                    _ = receipt.outcome() => return ExchangeStatus::Delivered,
                },
                None => single_reply_outcome(),
            };
            match outcome {
                MessageOutcome::Done { replies, .. } => {
                    let expected = usize::try_from(replies).unwrap_or(usize::MAX);
                    let replies = outbounds.wait_for(|all| all.len() >= expected).await;
                    return replies.map_or(ExchangeStatus::Pending, |all| {
                        ExchangeStatus::Answered(all.clone())
                    });
                }
                MessageOutcome::Joined { message_id } => exchange = self.get_or_create(&message_id),
                MessageOutcome::Dropped { reason } => {
                    return ExchangeStatus::Dropped(reason.to_string());
                }
                // The turn failed and the message stays in the journal; bub answers it after the next start.
                _ => break,
            }
        }
        std::future::pending().await
    }

    fn insert_with_id(
        &self,
        table: &mut ExchangeTable,
        id: &MessageId,
        exchange: Arc<Exchange>,
    ) -> Arc<Exchange> {
        // The id is set only here, once.
        let _ = exchange.id.set(id.clone());
        table.by_id.insert(id.clone(), Arc::clone(&exchange));
        table
            .order
            .push_back((Instant::now(), Arc::clone(&exchange)));
        self.evict_over_limit(table);
        exchange
    }

    fn evict_over_limit(&self, table: &mut ExchangeTable) {
        // Exchanges with waiting requests move to the end of the queue, each once.
        for _ in 0..table.order.len() {
            let Some((since, _)) = table.order.front() else {
                return;
            };
            let is_over_limit = table.order.len() > self.max_count || table.bytes > self.max_bytes;
            if !is_over_limit && since.elapsed() < self.max_age {
                return;
            }
            let Some((_, oldest)) = table.order.pop_front() else {
                return;
            };
            if *oldest.waiting.borrow() > 0 {
                table.order.push_back((Instant::now(), oldest));
                continue;
            }
            table.by_id.remove(oldest.id());
            table.bytes = table.bytes.saturating_sub(oldest.content_bytes());
            if table.by_id.is_empty() {
                // Release the memory of the empty table.
                *table = ExchangeTable {
                    unnamed: std::mem::take(&mut table.unnamed),
                    ..ExchangeTable::default()
                };
            }
        }
    }

    fn lock_table(&self) -> MutexGuard<'_, ExchangeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    fn new() -> Self {
        Self {
            id: OnceLock::new(),
            receipt: OnceLock::new(),
            fingerprint: OnceLock::new(),
            callback: OnceLock::new(),
            outbounds: watch::Sender::default(),
            waiting: watch::Sender::default(),
            written: watch::Sender::default(),
            deltas: OnceLock::new(),
        }
    }

    /// Returns the id of the message. Empty until the message is accepted.
    pub(super) fn id(&self) -> &str {
        self.id.get().map_or("", MessageId::as_str)
    }

    /// Returns the replies as they arrive.
    pub(super) fn watch_replies(&self) -> watch::Receiver<Vec<ExchangeReply>> {
        self.outbounds.subscribe()
    }

    /// Returns the callback URL for replies.
    pub(super) fn callback_url(&self) -> Option<String> {
        self.callback.get().cloned()
    }

    fn set_request(&self, request: ExchangeRequest) {
        // Ignore the results: the exchange is new, so these values are not set yet.
        let _ = self.receipt.set(request.receipt);
        let _ = self.fingerprint.set(request.fingerprint);
        if let Some(url) = request.callback_url {
            let _ = self.callback.set(url);
        }
    }

    /// Returns whether the message of this exchange has another fingerprint than `fingerprint`. A fingerprint is a hash
    /// of a message's content and session id.
    pub(super) fn has_other_content(&self, fingerprint: u64) -> bool {
        self.fingerprint
            .get()
            .is_some_and(|own| *own != fingerprint)
    }

    /// Copies the request data of `pending`, an exchange without an id. Keeps data that this exchange already has.
    fn merge_request(&self, pending: &Self) {
        if let Some(fingerprint) = pending.fingerprint.get() {
            let _ = self.fingerprint.set(*fingerprint);
        }
        let receipt = pending.receipt.get();
        if let Some(receipt) = receipt.filter(|receipt| !receipt.is_duplicate()) {
            let _ = self.receipt.set(Arc::clone(receipt));
        }
        if let Some(url) = pending.callback.get() {
            let _ = self.callback.set(url.clone());
        }
    }

    /// Counts a waiting request until the guard is dropped.
    pub(super) fn register_waiter(self: &Arc<Self>) -> WaiterGuard {
        self.waiting.send_modify(|count| *count += 1);
        WaiterGuard(Arc::clone(self))
    }

    /// Waits until the waiting requests have received the replies, at most [`RECEIVE_TIMEOUT`]. Does not wait for the
    /// requests if more replies will follow.
    pub(super) async fn wait_until_received(&self) {
        let mut waiting = self.waiting.subscribe();
        if *waiting.borrow() == 0 || self.has_pending_replies().await {
            return;
        }
        let _ = tokio::time::timeout(RECEIVE_TIMEOUT, waiting.wait_for(|count| *count == 0)).await;
    }

    /// Waits until a reply is written to the connection of a waiting request. Returns `false` after [`CLAIM_TIMEOUT`]
    /// without a waiting request.
    pub(super) async fn wait_until_claimed(&self, reply: &ExchangeReply) -> bool {
        let is_same = |other: &ExchangeReply| other.reply_id == reply.reply_id;
        let reply_number = self
            .outbounds
            .borrow()
            .iter()
            .position(is_same)
            .map_or(usize::MAX, |index| index + 1);
        let (mut written, mut waiting) = (self.written.subscribe(), self.waiting.subscribe());
        loop {
            let is_awaited = *waiting.borrow_and_update() > 0;
            tokio::select! {
                biased;
                Ok(_) = written.wait_for(|count| *count >= reply_number) => return true,
                Ok(()) = waiting.changed() => {}
                () = tokio::time::sleep(CLAIM_TIMEOUT), if !is_awaited => return false,
            }
        }
    }

    /// Returns whether a reply is missing or the turn is still running.
    async fn has_pending_replies(&self) -> bool {
        let receipt = self.receipt.get();
        let Some(receipt) = receipt.filter(|receipt| !receipt.is_duplicate()) else {
            return false;
        };
        let expected = match tokio::time::timeout(TURN_END_TIMEOUT, receipt.outcome()).await {
            Ok(MessageOutcome::Done { replies, .. }) => {
                usize::try_from(replies).unwrap_or(usize::MAX)
            }
            Ok(_) => 0,
            Err(_) => return true,
        };
        self.outbounds.borrow().len() < expected
    }

    /// Sends a text delta to the readers of the stream, if any.
    pub(super) fn send_delta(&self, delta: &str) {
        if let Some(deltas) = self.deltas.get() {
            let _ = deltas.send(delta.to_owned());
        }
    }

    /// Subscribes to the text deltas.
    pub(super) fn subscribe_deltas(&self) -> broadcast::Receiver<String> {
        self.deltas
            .get_or_init(|| broadcast::Sender::new(DELTA_CAPACITY))
            .subscribe()
    }

    /// Subscribes to the text deltas if `is_streaming`.
    pub(super) fn subscribe_deltas_if(
        &self,
        is_streaming: bool,
    ) -> Option<broadcast::Receiver<String>> {
        is_streaming.then(|| self.subscribe_deltas())
    }

    fn content_bytes(&self) -> usize {
        self.outbounds
            .borrow()
            .iter()
            .map(|outbound| outbound.content().len())
            .sum()
    }
}

/// Data of the request that posted a message.
pub(super) struct ExchangeRequest {
    pub(super) receipt: Arc<InboundReceipt>,
    pub(super) fingerprint: u64,
    pub(super) callback_url: Option<String>,
}

/// An exchange whose message is not accepted yet. On drop, the exchange leaves the list of exchanges without an id.
pub(super) struct PendingExchange {
    exchanges: Arc<ExchangeStore>,
    pub(super) exchange: Arc<Exchange>,
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        let mut table = self.exchanges.lock_table();
        table
            .unnamed
            .retain(|exchange| !Arc::ptr_eq(exchange, &self.exchange));
    }
}

fn single_reply_outcome() -> MessageOutcome {
    MessageOutcome::Done {
        replies: 1,
        report: None,
    }
}

/// Counts a request as waiting for a reply until this guard is dropped.
pub(super) struct WaiterGuard(Arc<Exchange>);

impl WaiterGuard {
    /// Records that the replies in `status` are written to a connection.
    pub(super) fn mark_written(&self, status: &ExchangeStatus) {
        if let ExchangeStatus::Answered(outbounds) = status {
            self.0
                .written
                .send_modify(|count| *count = outbounds.len().max(*count));
        }
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0
            .waiting
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}
