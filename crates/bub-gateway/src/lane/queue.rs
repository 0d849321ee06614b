//! The map of lanes and the event queue of each lane.
//!
//! A message reserves a slot in the queue of its session before it is accepted. Passing an accepted message to its
//! lane therefore neither fails nor waits, and the limit of a session bounds its queue. Other events are merged with
//! queued events of the same kind.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_kernel::{CancellationToken, MessageId, SessionId};
use tokio::sync::{Notify, oneshot};

use super::{Lane, QueuedMessage};
use crate::{gateway::GatewayInner, journal::lock};

/// All lanes by session.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<LaneMap>);

#[derive(Debug, Default)]
struct LaneMap {
    by_session: HashMap<SessionId, Arc<LaneQueue>>,
    /// Messages that are being accepted and are not in a lane yet.
    arrivals: HashMap<MessageId, ArrivalState>,
    /// The last message of each chat that is being accepted.
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
    /// Number of started turns. Turns that wait for a permit are not counted.
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
    /// Cancels running turns only.
    Cancel,
    /// Drops the last queued message.
    Withdraw,
}

/// A slot in the queue of a session. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct QueueSlot(Arc<LaneQueue>);

impl QueueSlot {
    fn new(queue: &Arc<LaneQueue>) -> Self {
        queue.unfinished.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(queue))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::Relaxed) == 1 {
            // The lane may have no more work.
            self.0.wake.notify_one();
        }
    }
}

/// A message that is being accepted. If its chat is switched to another session in the meantime, the message follows.
pub(crate) struct Arrival {
    inner: Arc<GatewayInner>,
    id: MessageId,
    /// Cancelled when the message of the same chat that arrived before is accepted or rejected.
    earlier: Option<CancellationToken>,
    /// Cancelled when this message is accepted or rejected.
    ended: CancellationToken,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut map = lock(&self.inner.lanes.0);
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
        let mut map = lock(&self.inner.lanes.0);
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
            && !lock(&queue.events).is_closed
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
    /// Announces a message of a chat before its session is resolved.
    pub(crate) fn announce_message(
        inner: &Arc<GatewayInner>,
        id: &MessageId,
        chat: ChatKey,
    ) -> Arrival {
        let ended = CancellationToken::new();
        let mut map = lock(&inner.lanes.0);
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

    /// Reserves a slot in the queue of a session. Returns `None` if the session already uses `limit` slots.
    pub(crate) fn reserve_slot(
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        limit: usize,
    ) -> Option<QueueSlot> {
        let mut map = lock(&inner.lanes.0);
        let queue = map.by_session.get(session_id);
        let unfinished = queue.map_or(0, |queue| queue.unfinished.load(Ordering::Relaxed));
        (unfinished < limit).then(|| QueueSlot::new(&map.queue_or_start(inner, session_id)))
    }

    /// Puts a message that has no reservation into the lane of its session.
    pub(crate) fn push_message(
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        item: QueuedMessage,
    ) {
        lock(&inner.lanes.0).push_message(inner, session_id, item);
    }

    /// Switches a chat from one session to another. Messages that are being accepted follow. Returns the queued
    /// messages that the lane has not received yet.
    pub(super) fn switch_chat(
        &self,
        chat: &ChatKey,
        from: &SessionId,
        to: &SessionId,
    ) -> Vec<QueuedMessage> {
        let mut map = lock(&self.0);
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
        let mut map = lock(&self.0);
        let is_busy = queue.unfinished.load(Ordering::Relaxed) > 0;
        if is_busy || !lock(&queue.events).events.is_empty() {
            return false;
        }
        map.by_session.remove(session_id);
        drop(map);
        inner.idle.notify_waiters();
        true
    }

    /// Removes a lane unconditionally.
    pub(super) fn remove_lane(&self, inner: &GatewayInner, session_id: &SessionId) {
        lock(&self.0).by_session.remove(session_id);
        inner.idle.notify_waiters();
    }

    /// Returns whether a message is being accepted, which includes `resolve_session`.
    pub(crate) fn is_arriving(&self, id: &MessageId) -> bool {
        lock(&self.0).arrivals.contains_key(id)
    }

    pub(crate) fn has_arrivals(&self) -> bool {
        !lock(&self.0).arrivals.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let map = lock(&self.0);
        map.by_session
            .values()
            .all(|queue| lock(&queue.events).is_closed)
    }

    /// Returns the id, the number of unfinished messages and the number of running turns of each session with a lane.
    pub(crate) fn session_loads(&self) -> Vec<(SessionId, usize, usize)> {
        let map = lock(&self.0);
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
        if let Some(queue) = lock(&self.0).by_session.get(session_id) {
            queue.push_event(LaneEvent::Cancel);
        }
    }

    /// Drops the last queued message of a session.
    pub(crate) fn withdraw_last(&self, session_id: &SessionId) {
        if let Some(queue) = lock(&self.0).by_session.get(session_id) {
            queue.push_event(LaneEvent::Withdraw);
        }
    }

    /// Cancels the running turns of a session, except the turn of the message `except`, and drops its queued messages.
    /// Waits until the cancelled turns have ended.
    pub(crate) async fn quit_session(&self, session_id: &SessionId, except: Option<MessageId>) {
        let (done, ended) = oneshot::channel();
        match lock(&self.0).by_session.get(session_id) {
            Some(queue) => queue.push_event(LaneEvent::Quit {
                except,
                done: vec![done],
            }),
            None => return,
        }
        // An error means that the lane has ended, and all its turns with it.
        let _ = ended.await;
    }
}

impl LaneQueue {
    fn push_event(&self, event: LaneEvent) {
        let mut queue = lock(&self.events);
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
        lock(&self.events).events.pop_front()
    }

    /// Removes and returns the queued messages of a chat.
    fn take_messages(&self, chat: &ChatKey) -> Vec<QueuedMessage> {
        let mut queue = lock(&self.events);
        let (taken, remaining): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut queue.events).into_iter().partition(
                |event| matches!(event, LaneEvent::Message(item) if item.chat_key() == *chat),
            );
        queue.events = remaining;
        let item = |event| match event {
            LaneEvent::Message(item) => Some(*item),
            _ => None,
        };
        taken.into_iter().filter_map(item).collect()
    }

    /// Closes the queue and drops the queued events.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.events);
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
        let is_reserved = |slot: &QueueSlot| Arc::ptr_eq(&slot.0, queue);
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
        lock(&queue.events).events.len()
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
