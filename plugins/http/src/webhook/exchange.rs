//! Which message waits for which reply, and what is remembered of both.
//!
//! An exchange begins with whichever comes first: the request that posted the message, or, after a restart or for a
//! very fast turn, the reply. Everything here is bounded; an exchange that is forgotten is no message lost.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bub::kernel::{InboundReceipt, MessageId, MessageOutcome, Outbound, ReplyId, Turn};
use bub::settings::Redactor;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};

use super::options::WebhookOptions;

/// How many pieces of a growing answer a slow reader may be behind.
const DELTA_CAPACITY: usize = 256;
/// How long a reply waits for those who wait for it to take it.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a reply waits for somebody who comes for it: whoever asks for it again is about to.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after its last reply a turn may take to end.
const TURN_END_TIMEOUT: Duration = Duration::from_millis(250);
/// How many messages may have joined each other.
const MAX_JOIN_DEPTH: usize = 8;

/// All exchanges that are remembered.
pub(super) struct ExchangeStore {
    known: Mutex<ExchangeTable>,
    redactor: Redactor,
    most: usize,
    most_bytes: usize,
    longest: Duration,
}

#[derive(Default)]
struct ExchangeTable {
    by_id: HashMap<MessageId, Arc<Exchange>>,
    /// Those whose request waits for the message to be accepted.
    unnamed: Vec<Arc<Exchange>>,
    /// Oldest first.
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
    /// How many of the replies were written to a connection.
    written: watch::Sender<usize>,
    deltas: OnceLock<broadcast::Sender<String>>,
    redactor: Redactor,
}

/// A reply as clients see it.
#[derive(Clone, Debug)]
pub(super) struct ExchangeReply {
    /// The same for every attempt to deliver it.
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
        self.is_of("error")
    }

    /// Whether somebody is asked to approve a tool call.
    pub(super) fn is_question(&self) -> bool {
        self.is_of("approval")
    }

    fn is_of(&self, kind: &str) -> bool {
        self.value.get("kind").and_then(Value::as_str) == Some(kind)
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }
}

/// How far an exchange has come.
#[derive(Clone, Debug)]
pub(super) enum ExchangeStatus {
    Pending,
    Answered(Vec<ExchangeReply>),
    /// It was answered before this process began, or so long ago that the reply is forgotten.
    Delivered,
    Dropped(String),
}

impl ExchangeStore {
    pub(super) fn new(options: &WebhookOptions) -> Self {
        Self {
            known: Mutex::default(),
            redactor: options.redactor.clone(),
            most: options.kept,
            most_bytes: options.kept_bytes,
            longest: options.kept_for,
        }
    }

    /// Begins the exchange of a message that has no id yet.
    pub(super) fn begin(self: &Arc<Self>, posted: ExchangeRequest) -> PendingExchange {
        let exchange = Arc::new(Exchange::new(self.redactor.clone()));
        exchange.set_posted(posted);
        self.table().unnamed.push(Arc::clone(&exchange));
        PendingExchange {
            exchanges: Arc::clone(self),
            exchange,
        }
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Exchange>> {
        self.table().by_id.get(id).cloned()
    }

    /// The exchange that a turn answers. The turn may be faster than the request that posted its message: then the
    /// exchange is known only by its receipt.
    pub(super) fn find_turn(&self, turn: &Turn) -> Option<Arc<Exchange>> {
        let known = self.table();
        let receipt = turn.inbound().receipt.as_ref();
        let is_own = |exchange: &&Arc<Exchange>| match (exchange.receipt.get(), receipt) {
            (Some(own), Some(receipt)) => Arc::ptr_eq(own, receipt),
            _ => false,
        };
        let unnamed = known.unnamed.iter().find(is_own);
        let id = || turn.message_id().or_else(|| receipt?.message_id());
        let named = || known.by_id.get(id()?);
        unnamed.or_else(named).cloned()
    }

    /// The exchange of that id.
    pub(super) fn open(&self, id: &MessageId) -> Arc<Exchange> {
        let mut known = self.table();
        if let Some(exchange) = known.by_id.get(id) {
            return Arc::clone(exchange);
        }
        let exchange = Arc::new(Exchange::new(self.redactor.clone()));
        self.insert(&mut known, id, exchange)
    }

    /// Names an exchange that was begun. What is known under that name already, a duplicate or a reply that was faster
    /// than its request, is kept and returned.
    pub(super) fn name(&self, exchange: &Arc<Exchange>, id: &MessageId) -> Arc<Exchange> {
        let mut known = self.table();
        match known.by_id.get(id).cloned() {
            Some(faster) => {
                faster.adopt(exchange);
                faster
            }
            None => self.insert(&mut known, id, Arc::clone(exchange)),
        }
    }

    /// Adds a reply, once.
    pub(super) fn add(&self, exchange: &Exchange, reply: &ExchangeReply) {
        let is_new = exchange.outbounds.send_if_modified(|all| {
            let repeats = |known: &ExchangeReply| {
                !known.reply_id.is_empty() && known.reply_id == reply.reply_id
            };
            let is_new = !all.iter().any(repeats);
            if is_new {
                all.push(reply.clone());
            }
            is_new
        });
        if is_new {
            let mut known = self.table();
            known.bytes += reply.content().len();
            self.forget(&mut known);
        }
    }

    /// Forgets what is too old or too much.
    pub(super) fn sweep(&self) {
        self.forget(&mut self.table());
    }

    /// How far an exchange has come, and the same of the one it joined.
    pub(super) fn progress(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        self.wait_answered(exchange)
            .now_or_never()
            .unwrap_or(ExchangeStatus::Pending)
    }

    /// Waits for the end of an exchange. One whose first request is not known ends with its first reply.
    pub(super) async fn wait_answered(&self, exchange: &Arc<Exchange>) -> ExchangeStatus {
        let mut exchange = Arc::clone(exchange);
        for _ in 0..MAX_JOIN_DEPTH {
            let mut outbounds = exchange.outbounds.subscribe();
            let outcome = match exchange.receipt.get() {
                Some(receipt) if !receipt.is_duplicate() => receipt.outcome().await,
                Some(receipt) => tokio::select! {
                    biased;
                    _ = outbounds.wait_for(|all| all.len() >= receipt.unclaimed_replies().max(1)) => one_reply(),
                    _ = receipt.outcome() => return ExchangeStatus::Delivered,
                },
                None => one_reply(),
            };
            match outcome {
                MessageOutcome::Done { replies, .. } => {
                    let expected = usize::try_from(replies).unwrap_or(usize::MAX);
                    let found = outbounds.wait_for(|all| all.len() >= expected).await;
                    return found.map_or(ExchangeStatus::Pending, |all| {
                        ExchangeStatus::Answered(all.clone())
                    });
                }
                MessageOutcome::Joined { message_id } => exchange = self.open(&message_id),
                MessageOutcome::Dropped { reason } => {
                    return ExchangeStatus::Dropped(reason.to_string());
                }
                // It is answered after the next start.
                _ => break,
            }
        }
        std::future::pending().await
    }

    fn insert(
        &self,
        known: &mut ExchangeTable,
        id: &MessageId,
        exchange: Arc<Exchange>,
    ) -> Arc<Exchange> {
        // An exchange is named once, here.
        let _ = exchange.id.set(id.clone());
        known.by_id.insert(id.clone(), Arc::clone(&exchange));
        known
            .order
            .push_back((Instant::now(), Arc::clone(&exchange)));
        self.forget(known);
        exchange
    }

    fn forget(&self, known: &mut ExchangeTable) {
        // Those that somebody waits for are passed over, each once.
        for _ in 0..known.order.len() {
            let Some((since, _)) = known.order.front() else {
                return;
            };
            let is_too_much = known.order.len() > self.most || known.bytes > self.most_bytes;
            if !is_too_much && since.elapsed() < self.longest {
                return;
            }
            let Some((_, oldest)) = known.order.pop_front() else {
                return;
            };
            if *oldest.waiting.borrow() > 0 {
                known.order.push_back((Instant::now(), oldest));
                continue;
            }
            known.by_id.remove(oldest.id());
            known.bytes = known.bytes.saturating_sub(oldest.bytes());
            if known.by_id.is_empty() {
                // Gives the memory back.
                *known = ExchangeTable {
                    unnamed: std::mem::take(&mut known.unnamed),
                    ..ExchangeTable::default()
                };
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, ExchangeTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    fn new(redactor: Redactor) -> Self {
        Self {
            id: OnceLock::new(),
            receipt: OnceLock::new(),
            fingerprint: OnceLock::new(),
            callback: OnceLock::new(),
            outbounds: watch::Sender::default(),
            waiting: watch::Sender::default(),
            written: watch::Sender::default(),
            deltas: OnceLock::new(),
            redactor,
        }
    }

    /// The id of the message; empty until it is accepted.
    pub(super) fn id(&self) -> &str {
        self.id.get().map_or("", MessageId::as_str)
    }

    /// The replies, as they come.
    pub(super) fn outbounds(&self) -> watch::Receiver<Vec<ExchangeReply>> {
        self.outbounds.subscribe()
    }

    /// The URL to which replies go.
    pub(super) fn callback(&self) -> Option<String> {
        self.callback.get().cloned()
    }

    fn set_posted(&self, posted: ExchangeRequest) {
        // An exchange is posted once, before it is named.
        let _ = self.receipt.set(posted.receipt);
        let _ = self.fingerprint.set(posted.fingerprint);
        if let Some(url) = posted.callback_url {
            let _ = self.callback.set(url);
        }
    }

    /// Whether it is about another message than the one of this fingerprint.
    pub(super) fn has_other_content(&self, fingerprint: u64) -> bool {
        self.fingerprint
            .get()
            .is_some_and(|own| *own != fingerprint)
    }

    /// Takes over what a request knows.
    fn adopt(&self, begun: &Self) {
        if let Some(fingerprint) = begun.fingerprint.get() {
            let _ = self.fingerprint.set(*fingerprint);
        }
        let receipt = begun.receipt.get();
        if let Some(receipt) = receipt.filter(|receipt| !receipt.is_duplicate()) {
            let _ = self.receipt.set(Arc::clone(receipt));
        }
        if let Some(url) = begun.callback.get() {
            let _ = self.callback.set(url.clone());
        }
    }

    /// Says that somebody waits, until the guard is dropped.
    pub(super) fn wait(self: &Arc<Self>) -> WaiterGuard {
        self.waiting.send_modify(|count| *count += 1);
        WaiterGuard(Arc::clone(self))
    }

    /// Waits until those who wait have taken the replies, when these are all.
    pub(super) async fn wait_taken(&self) {
        let mut waiting = self.waiting.subscribe();
        if *waiting.borrow() == 0 || self.has_more_to_come().await {
            return;
        }
        let _ = tokio::time::timeout(TAKE_TIMEOUT, waiting.wait_for(|count| *count == 0)).await;
    }

    /// Waits until a reply is written to the connection of somebody who waits; `false` when nobody does.
    pub(super) async fn wait_claimed(&self, reply: &ExchangeReply) -> bool {
        let is_it = |known: &ExchangeReply| known.reply_id == reply.reply_id;
        let place = self
            .outbounds
            .borrow()
            .iter()
            .position(is_it)
            .map_or(usize::MAX, |at| at + 1);
        let (mut written, mut waiting) = (self.written.subscribe(), self.waiting.subscribe());
        loop {
            let is_awaited = *waiting.borrow_and_update() > 0;
            tokio::select! {
                biased;
                Ok(_) = written.wait_for(|count| *count >= place) => return true,
                Ok(()) = waiting.changed() => {}
                () = tokio::time::sleep(CLAIM_TIMEOUT), if !is_awaited => return false,
            }
        }
    }

    /// Whether a reply is missing, or the turn goes on after this one.
    async fn has_more_to_come(&self) -> bool {
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

    /// Passes on a piece of the growing answer, when somebody listens.
    pub(super) fn send_delta(&self, delta: &str) {
        if let Some(deltas) = self.deltas.get() {
            let _ = deltas.send(self.redactor.redact(delta).into_owned());
        }
    }

    /// Listens to the growing answer.
    pub(super) fn listen(&self) -> broadcast::Receiver<String> {
        self.deltas
            .get_or_init(|| broadcast::Sender::new(DELTA_CAPACITY))
            .subscribe()
    }

    /// The same, when it is wanted.
    pub(super) fn subscribe_if(&self, is_wanted: bool) -> Option<broadcast::Receiver<String>> {
        is_wanted.then(|| self.listen())
    }

    fn bytes(&self) -> usize {
        self.outbounds
            .borrow()
            .iter()
            .map(|outbound| outbound.content().len())
            .sum()
    }
}

/// What a request posted.
pub(super) struct ExchangeRequest {
    pub(super) receipt: Arc<InboundReceipt>,
    pub(super) fingerprint: u64,
    pub(super) callback_url: Option<String>,
}

/// An exchange whose request waits for its message to be accepted.
pub(super) struct PendingExchange {
    exchanges: Arc<ExchangeStore>,
    pub(super) exchange: Arc<Exchange>,
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        let mut known = self.exchanges.table();
        known
            .unnamed
            .retain(|exchange| !Arc::ptr_eq(exchange, &self.exchange));
    }
}

fn one_reply() -> MessageOutcome {
    MessageOutcome::Done {
        replies: 1,
        report: None,
    }
}

/// Somebody waits for a reply.
pub(super) struct WaiterGuard(Arc<Exchange>);

impl WaiterGuard {
    /// The answer about an exchange goes to its connection.
    pub(super) fn write(&self, progress: &ExchangeStatus) {
        if let ExchangeStatus::Answered(outbounds) = progress {
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
