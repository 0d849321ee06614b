//! The map of lanes and the event queue of each lane.
//!
//! A message reserves a slot in the queue of its session before it is accepted. Passing an accepted message to its lane
//! therefore neither fails nor waits, and the limit of a session bounds its queue. Other events, such as a
//! cancellation, cannot fill the queue, because repeated ones are merged or dropped.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_kernel::{CancellationToken, MessageId, SessionId};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{Lane, QueuedMessage};
use crate::gateway::GatewayInner;

/// How many messages a session may have for each turn of its limit, because a batch of messages is one turn.
const MAX_BATCH_FACTOR: usize = 10;

/// All lanes by session.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<LaneMap>);

#[derive(Debug, Default)]
struct LaneMap {
    by_session: HashMap<SessionId, Arc<LaneQueue>>,
    /// Messages that are being accepted and are not in a lane yet.
    arrivals: HashMap<MessageId, ArrivalState>,
    /// For each chat, the latest of its messages that are being accepted. Its token is cancelled when the message is
    /// accepted or rejected.
    last_arrivals: HashMap<ChatKey, (MessageId, CancellationToken)>,
}

/// Session switches of a chat while one of its messages is being accepted.
#[derive(Debug)]
struct ArrivalState {
    chat: ChatKey,
    switches: Vec<(SessionId, SessionId)>,
}

/// A channel and the id of one of its chats.
pub(crate) type ChatKey = (String, String);

/// Event queue of a lane, with counters of its work.
#[derive(Debug, Default)]
pub(crate) struct LaneQueue {
    events: Mutex<EventQueue>,
    wake: Notify,
    unfinished: AtomicUsize,
    /// How many of the unfinished messages share a turn with an earlier message of their batch.
    joined: AtomicUsize,
    /// Number of turns that are running now. Turns that wait for a permit are not counted.
    pub(super) running: AtomicUsize,
}

#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<LaneEvent>,
    /// Whether the lane has ended.
    is_closed: bool,
}

#[derive(Debug)]
pub(super) enum LaneEvent {
    // Boxed, because the other events are small.
    Message(Box<QueuedMessage>),
    /// Cancels the running turns, except the turn of the message `except`, and drops all queued messages.
    Quit {
        except: Option<MessageId>,
        done: Vec<oneshot::Sender<()>>,
    },
    /// Cancels the running turns. Queued messages stay in the queue.
    Cancel,
    /// Drops the last queued message.
    Withdraw,
}

/// A slot in the queue of a session. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    queue: Arc<LaneQueue>,
    is_joined: bool,
}

impl QueueSlot {
    fn new(queue: &Arc<LaneQueue>) -> Self {
        queue.unfinished.fetch_add(1, Ordering::Relaxed);
        Self {
            queue: Arc::clone(queue),
            is_joined: false,
        }
    }

    /// Records that the message joins the batch of an earlier one, so that both take the room of one turn.
    pub(super) fn join_batch(&mut self) {
        if !std::mem::replace(&mut self.is_joined, true) {
            self.queue.joined.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        if self.is_joined {
            self.queue.joined.fetch_sub(1, Ordering::Relaxed);
        }
        if self.queue.unfinished.fetch_sub(1, Ordering::Relaxed) == 1 {
            // The lane may have no more work.
            self.queue.wake.notify_one();
        }
    }
}

/// A message that is being accepted. If its chat is switched to another session in the meantime, the message goes to
/// that session.
pub(crate) struct Arrival {
    inner: Arc<GatewayInner>,
    id: MessageId,
    /// Cancelled when the previous message of the chat is accepted or rejected. `None` if no earlier message of the
    /// chat is being accepted.
    earlier: Option<CancellationToken>,
    /// Cancelled when this message is accepted or rejected.
    ended: CancellationToken,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut map = self.inner.lanes.0.lock();
        if let Some(arrival) = map.arrivals.remove(&self.id)
            && let Entry::Occupied(last) = map.last_arrivals.entry(arrival.chat)
            && last.get().0 == self.id
        {
            last.remove();
        }
        drop(map);
        self.ended.cancel();
        self.inner.idle.notify_waiters();
    }
}

impl Arrival {
    pub(crate) fn id(&self) -> &MessageId {
        &self.id
    }

    /// Waits until the earlier messages of the chat are accepted or rejected.
    pub(crate) async fn wait_for_earlier(&self) {
        if let Some(earlier) = &self.earlier {
            earlier.cancelled().await;
        }
    }

    /// Puts the message into the lane of its session.
    pub(crate) fn push_to_lane(self, session_id: &SessionId, item: QueuedMessage) {
        let mut map = self.inner.lanes.0.lock();
        let switches = map.arrivals.get(&self.id);
        let switches = switches.map_or(&[][..], |arrival| &arrival.switches);
        let mut session_id = session_id.clone();
        for (from, to) in switches {
            if session_id == *from {
                session_id.clone_from(to);
            }
        }
        map.push_message(&self.inner, &session_id, item);
    }
}

impl LaneMap {
    /// Returns the queue of a session. Starts its lane if necessary.
    fn queue_or_start(
        &mut self,
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
    ) -> Arc<LaneQueue> {
        if let Some(queue) = self.by_session.get(session_id)
            && !queue.events.lock().is_closed
        {
            return Arc::clone(queue);
        }
        let queue = Arc::<LaneQueue>::default();
        tokio::spawn(Lane::new(inner, session_id, Arc::clone(&queue)).run());
        self.by_session
            .insert(session_id.clone(), Arc::clone(&queue));
        queue
    }

    fn push_message(
        &mut self,
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        mut item: QueuedMessage,
    ) {
        let queue = self.queue_or_start(inner, session_id);
        if item.inbound.session_id() != Some(session_id) {
            item.inbound.set_session_id(session_id.clone());
        }
        item.reserve_slots(&queue);
        // The lane cannot be removed while the map is locked.
        queue.push_event(LaneEvent::Message(Box::new(item)));
    }
}

impl Lanes {
    /// Registers a message that is being accepted, before its session is resolved. Dropping the returned [`Arrival`]
    /// removes the registration.
    pub(crate) fn announce_message(
        inner: &Arc<GatewayInner>,
        id: &MessageId,
        chat: ChatKey,
    ) -> Arrival {
        let ended = CancellationToken::new();
        let mut map = inner.lanes.0.lock();
        let last = (id.clone(), ended.clone());
        let earlier = map.last_arrivals.insert(chat.clone(), last);
        let switches = Vec::new();
        let arrival = ArrivalState { chat, switches };
        map.arrivals.insert(id.clone(), arrival);
        Arrival {
            inner: Arc::clone(inner),
            id: id.clone(),
            earlier: earlier.map(|(_, ended)| ended),
            ended,
        }
    }

    /// Reserves a slot in the queue of a session. Returns `None` if the session already has `limit` turns to run, where
    /// the messages of a batch are one turn, or [`MAX_BATCH_FACTOR`] times as many messages.
    pub(crate) fn reserve_slot(
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        limit: usize,
    ) -> Option<QueueSlot> {
        let mut map = inner.lanes.0.lock();
        let queue = map.by_session.get(session_id);
        let (unfinished, joined) = queue.map_or((0, 0), |queue| {
            let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            (count(&queue.unfinished), count(&queue.joined))
        });
        let has_room = unfinished.saturating_sub(joined) < limit
            && unfinished < limit.saturating_mul(MAX_BATCH_FACTOR);
        has_room.then(|| QueueSlot::new(&map.queue_or_start(inner, session_id)))
    }

    /// Puts a message into the lane of a session. Reserves a slot in the queue if the message has none there.
    pub(crate) fn push_message(
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        item: QueuedMessage,
    ) {
        inner.lanes.0.lock().push_message(inner, session_id, item);
    }

    /// Switches a chat from one session to another. Messages that are being accepted go to the new session. Returns the
    /// messages that are still in the queue of the old session.
    pub(super) fn switch_chat(
        &self,
        chat: &ChatKey,
        from: &SessionId,
        to: &SessionId,
    ) -> Vec<QueuedMessage> {
        let mut map = self.0.lock();
        for arrival in map.arrivals.values_mut() {
            if arrival.chat == *chat {
                arrival.switches.push((from.clone(), to.clone()));
            }
        }
        match map.by_session.get(from) {
            Some(queue) => queue.take_messages(chat),
            None => Vec::new(),
        }
    }

    /// Removes a lane if it has no work. Returns whether it was removed.
    pub(super) fn remove_if_idle(
        &self,
        inner: &GatewayInner,
        session_id: &SessionId,
        queue: &LaneQueue,
    ) -> bool {
        let mut map = self.0.lock();
        let is_busy = queue.unfinished.load(Ordering::Relaxed) > 0;
        if is_busy || !queue.events.lock().events.is_empty() {
            return false;
        }
        map.by_session.remove(session_id);
        drop(map);
        inner.idle.notify_waiters();
        true
    }

    /// Removes a lane unconditionally.
    pub(super) fn remove_lane(&self, inner: &GatewayInner, session_id: &SessionId) {
        self.0.lock().by_session.remove(session_id);
        inner.idle.notify_waiters();
    }

    /// Returns whether a message is still being accepted. Acceptance ends when the message is in a lane or is rejected.
    pub(crate) fn is_arriving(&self, id: &MessageId) -> bool {
        self.0.lock().arrivals.contains_key(id)
    }

    /// Returns whether no message is being accepted and no lane has work.
    pub(crate) fn are_idle(&self) -> bool {
        let map = self.0.lock();
        let mut queues = map.by_session.values();
        map.arrivals.is_empty() && queues.all(|queue| queue.events.lock().is_closed)
    }

    /// Returns the id, the number of unfinished messages and the number of running turns of each session with a lane.
    pub(crate) fn session_loads(&self) -> Vec<(SessionId, usize, usize)> {
        let map = self.0.lock();
        let load = |(session_id, queue): (&SessionId, &Arc<LaneQueue>)| {
            let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
            (
                session_id.clone(),
                count(&queue.unfinished),
                count(&queue.running),
            )
        };
        map.by_session.iter().map(load).collect()
    }

    /// Cancels the running turns of a session.
    pub(crate) fn cancel_turns(&self, session_id: &SessionId) {
        self.push_event(session_id, LaneEvent::Cancel);
    }

    /// Drops the last queued message of a session.
    pub(crate) fn withdraw_last(&self, session_id: &SessionId) {
        self.push_event(session_id, LaneEvent::Withdraw);
    }

    /// Passes an event to the lane of a session. Without a lane, the event is dropped.
    fn push_event(&self, session_id: &SessionId, event: LaneEvent) {
        if let Some(queue) = self.0.lock().by_session.get(session_id) {
            queue.push_event(event);
        }
    }

    /// Cancels the running turns of a session, except the turn of the message `except`, and drops its queued messages.
    /// Waits until the cancelled turns have ended.
    pub(crate) async fn quit_session(&self, session_id: &SessionId, except: Option<MessageId>) {
        let (done, ended) = oneshot::channel();
        let done = vec![done];
        self.push_event(session_id, LaneEvent::Quit { except, done });
        // An error means that the session has no lane, or that the lane and all its turns have ended.
        let _ = ended.await;
    }
}

impl LaneQueue {
    fn push_event(&self, event: LaneEvent) {
        let mut queue = self.events.lock();
        if queue.is_closed {
            return;
        }
        let event = match (event, queue.events.back_mut()) {
            (LaneEvent::Cancel, Some(LaneEvent::Cancel)) => return,
            (
                LaneEvent::Quit { except, done },
                Some(LaneEvent::Quit {
                    except: same,
                    done: waiting,
                }),
            ) if except == *same => return waiting.extend(done),
            (event, _) => event,
        };
        if let LaneEvent::Withdraw = event {
            // More withdrawals than messages have no effect.
            let is_withdrawal = |event: &&LaneEvent| matches!(event, LaneEvent::Withdraw);
            let withdrawals = queue.events.iter().filter(is_withdrawal).count();
            if withdrawals >= self.unfinished.load(Ordering::Relaxed) {
                return;
            }
        }
        queue.events.push_back(event);
        drop(queue);
        self.wake.notify_one();
    }

    /// Waits for an event. Returns `None` if the lane was woken because it may have no more work.
    pub(super) async fn next_event(&self) -> Option<LaneEvent> {
        if let Some(event) = self.pop() {
            return Some(event);
        }
        self.wake.notified().await;
        self.pop()
    }

    fn pop(&self) -> Option<LaneEvent> {
        self.events.lock().events.pop_front()
    }

    /// Removes and returns the queued messages of a chat.
    fn take_messages(&self, chat: &ChatKey) -> Vec<QueuedMessage> {
        let mut queue = self.events.lock();
        let mut taken = Vec::new();
        for event in std::mem::take(&mut queue.events) {
            match event {
                LaneEvent::Message(item) if item.chat_key() == *chat => taken.push(*item),
                event => queue.events.push_back(event),
            }
        }
        taken
    }

    /// Closes the queue and drops the queued events.
    pub(super) fn close(&self) {
        let mut queue = self.events.lock();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.events);
        drop(queue);
        // Drop outside the lock, because a message frees its slot.
        drop(dropped);
    }
}

impl QueuedMessage {
    /// Reserves slots in a queue for this message and for the messages that were merged into it or steered its turn.
    fn reserve_slots(&mut self, queue: &Arc<LaneQueue>) {
        let is_reserved = |slot: &QueueSlot| Arc::ptr_eq(&slot.queue, queue);
        if !self.slot.as_ref().is_some_and(is_reserved) {
            self.slot = Some(QueueSlot::new(queue));
        }
        for item in self.merged.iter_mut().chain(&mut self.steered) {
            item.reserve_slots(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(queue: &LaneQueue) -> usize {
        queue.events.lock().events.len()
    }

    #[test]
    fn events_that_are_not_messages_do_not_pile_up() {
        let queue = Arc::new(LaneQueue::default());
        let slots = [QueueSlot::new(&queue), QueueSlot::new(&queue)];
        for _ in 0..1000 {
            queue.push_event(LaneEvent::Cancel);
        }
        assert_eq!(len(&queue), 1);
        let mut waiting = Vec::new();
        for _ in 0..1000 {
            let (done, ended) = oneshot::channel();
            waiting.push(ended);
            queue.push_event(LaneEvent::Quit {
                except: None,
                done: vec![done],
            });
        }
        assert_eq!(len(&queue), 2);
        for _ in 0..1000 {
            queue.push_event(LaneEvent::Withdraw);
        }
        assert_eq!(len(&queue), 4, "one per message");
        drop(slots);
        queue.close();
        queue.push_event(LaneEvent::Cancel);
        assert_eq!(len(&queue), 0);
        let is_notified = |ended: &mut oneshot::Receiver<()>| {
            ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        assert!(waiting.iter_mut().all(is_notified));
    }
}
