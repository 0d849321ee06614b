//! The lanes that exist, and the queue in front of each.
//!
//! A message takes a place in the queue of its session before it is journaled, so that an accepted message always has
//! one: handing it to its lane neither fails nor waits. The limit of a session therefore bounds its queue. Other events
//! add little: each kind is merged with what is queued already.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_kernel::{MessageId, SessionId};
use tokio::sync::{Notify, oneshot};

use super::{Lane, QueuedMessage};
use crate::{gateway::GatewayInner, journal::lock};

/// The lanes that exist.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<LaneMap>);

#[derive(Debug, Default)]
struct LaneMap {
    by_session: HashMap<SessionId, Arc<LaneQueue>>,
    /// Messages whose session is named and which are not in a lane yet.
    arrivals: HashMap<u64, ArrivalState>,
    next_arrival: u64,
}

/// What happened to the chat of a message while it was accepted.
#[derive(Debug)]
struct ArrivalState {
    chat: ChatKey,
    switches: Vec<(SessionId, SessionId)>,
}

/// A channel and a chat of it.
pub(crate) type ChatKey = (String, String);

/// The queue of a lane, and how busy the lane is.
#[derive(Debug, Default)]
pub(crate) struct LaneQueue {
    events: Mutex<EventQueue>,
    wake: Notify,
    unfinished: AtomicUsize,
    /// Turns that have begun; others wait for room.
    pub(super) running: AtomicUsize,
}

#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<LaneEvent>,
    /// The lane is gone.
    is_closed: bool,
}

#[derive(Debug)]
pub(super) enum LaneEvent {
    // In a box, because most events are small.
    Message(Box<QueuedMessage>),
    /// Cancels what runs and drops what waits, except one turn.
    Quit {
        except: Option<MessageId>,
        done: Vec<oneshot::Sender<()>>,
    },
    /// Cancels what runs, and only that.
    Cancel,
    /// Drops the last message that is queued.
    Withdraw,
}

/// A place in the queue of a session.
#[derive(Debug)]
pub(crate) struct QueueSlot(Arc<LaneQueue>);

impl QueueSlot {
    fn occupy(queue: &Arc<LaneQueue>) -> Self {
        queue.unfinished.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(queue))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::Relaxed) == 1 {
            // The lane may have nothing to do any more.
            self.0.wake.notify_one();
        }
    }
}

/// A message on its way into a lane. If its chat is switched to another session in the meantime, it follows.
pub(crate) struct Arrival {
    inner: Arc<GatewayInner>,
    id: u64,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        lock(&self.inner.lanes.0).arrivals.remove(&self.id);
        self.inner.idle.notify_waiters();
    }
}

impl Arrival {
    /// Puts the message into the lane of its session.
    pub(crate) fn push(self, session_id: &SessionId, item: QueuedMessage) {
        let mut map = lock(&self.inner.lanes.0);
        let switches = map.arrivals.get(&self.id);
        let switches = switches.map_or(&[][..], |arrival| &arrival.switches);
        let mut session_id = session_id.clone();
        for (from, to) in switches {
            if session_id == *from {
                session_id.clone_from(to);
            }
        }
        map.push(&self.inner, &session_id, item);
    }
}

impl LaneMap {
    /// The queue of a session, whose lane is started if need be.
    fn queue(&mut self, inner: &Arc<GatewayInner>, session_id: &SessionId) -> Arc<LaneQueue> {
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

    fn push(&mut self, inner: &Arc<GatewayInner>, session_id: &SessionId, mut item: QueuedMessage) {
        let queue = self.queue(inner, session_id);
        if item.inbound.session_id() != Some(session_id) {
            item.inbound.set_session_id(session_id.clone());
        }
        item.take_seats(&queue);
        // The lane cannot retire while the map is locked.
        queue.push(LaneEvent::Message(Box::new(item)));
    }
}

impl Lanes {
    /// Announces a message of a chat, before its session is named.
    pub(crate) fn announce(inner: &Arc<GatewayInner>, chat: ChatKey) -> Arrival {
        let mut map = lock(&inner.lanes.0);
        let id = map.next_arrival;
        map.next_arrival += 1;
        let switches = Vec::new();
        map.arrivals.insert(id, ArrivalState { chat, switches });
        Arrival {
            inner: Arc::clone(inner),
            id,
        }
    }

    /// Takes a place in the queue of a session, unless that has `limit` already.
    pub(crate) fn reserve(
        inner: &Arc<GatewayInner>,
        session_id: &SessionId,
        limit: usize,
    ) -> Option<QueueSlot> {
        let mut map = lock(&inner.lanes.0);
        let known = map.by_session.get(session_id);
        let unfinished = known.map_or(0, |queue| queue.unfinished.load(Ordering::Relaxed));
        (unfinished < limit).then(|| QueueSlot::occupy(&map.queue(inner, session_id)))
    }

    /// Puts a message that has no reservation into the lane of its session.
    pub(crate) fn push(inner: &Arc<GatewayInner>, session_id: &SessionId, item: QueuedMessage) {
        lock(&inner.lanes.0).push(inner, session_id, item);
    }

    /// Switches a chat from one session to another: messages that arrive just now follow, and those that the lane has
    /// not seen yet are returned.
    pub(super) fn switch(
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

    /// Removes a lane that has nothing to do; `false` if it has.
    pub(super) fn retire(
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

    /// Removes a lane, whatever it has to do.
    pub(super) fn remove(&self, inner: &GatewayInner, session_id: &SessionId) {
        lock(&self.0).by_session.remove(session_id);
        inner.idle.notify_waiters();
    }

    /// Whether a message is being accepted, which includes `resolve_session`.
    pub(crate) fn has_arrivals(&self) -> bool {
        !lock(&self.0).arrivals.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let map = lock(&self.0);
        map.by_session
            .values()
            .all(|queue| lock(&queue.events).is_closed)
    }

    /// The sessions that are busy: id, unfinished messages, running turns.
    pub(crate) fn loads(&self) -> Vec<(SessionId, usize, usize)> {
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

    /// Cancels what runs in a session.
    pub(crate) fn cancel(&self, session_id: &SessionId) {
        if let Some(queue) = lock(&self.0).by_session.get(session_id) {
            queue.push(LaneEvent::Cancel);
        }
    }

    /// Drops the last message that is queued in a session.
    pub(crate) fn withdraw(&self, session_id: &SessionId) {
        if let Some(queue) = lock(&self.0).by_session.get(session_id) {
            queue.push(LaneEvent::Withdraw);
        }
    }

    /// Ends what runs and waits in a session, except one turn.
    pub(crate) async fn quit(&self, session_id: &SessionId, except: Option<MessageId>) {
        let (done, ended) = oneshot::channel();
        match lock(&self.0).by_session.get(session_id) {
            Some(queue) => queue.push(LaneEvent::Quit {
                except,
                done: vec![done],
            }),
            None => return,
        }
        // An error means that the lane is gone, with everything that ran in it.
        let _ = ended.await;
    }
}

impl LaneQueue {
    fn push(&self, event: LaneEvent) {
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

    /// Waits for an event. `None` if there is none and the lane may have nothing to do any more.
    pub(super) async fn next(&self) -> Option<LaneEvent> {
        if let Some(event) = self.pop() {
            return Some(event);
        }
        self.wake.notified().await;
        self.pop()
    }

    fn pop(&self) -> Option<LaneEvent> {
        lock(&self.events).events.pop_front()
    }

    /// Takes out the queued messages of a chat.
    fn take_messages(&self, chat: &ChatKey) -> Vec<QueuedMessage> {
        let mut queue = lock(&self.events);
        let (taken, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut queue.events).into_iter().partition(
                |event| matches!(event, LaneEvent::Message(item) if item.chat_key() == *chat),
            );
        queue.events = kept;
        let item = |event| match event {
            LaneEvent::Message(item) => Some(*item),
            _ => None,
        };
        taken.into_iter().filter_map(item).collect()
    }

    /// Takes no more events; what is queued is dropped.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.events);
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.events);
        drop(queue);
        // Outside of the lock: a message gives its place back.
        drop(dropped);
    }
}

impl QueuedMessage {
    /// Takes places in a queue for this message and those that go with it.
    fn take_seats(&mut self, queue: &Arc<LaneQueue>) {
        let is_seated = |seat: &QueueSlot| Arc::ptr_eq(&seat.0, queue);
        if !self.seat.as_ref().is_some_and(is_seated) {
            self.seat = Some(QueueSlot::occupy(queue));
        }
        for item in self.merged.iter_mut().chain(&mut self.steered) {
            item.take_seats(queue);
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
        let seats = [QueueSlot::occupy(&queue), QueueSlot::occupy(&queue)];
        for _ in 0..1000 {
            queue.push(LaneEvent::Cancel);
        }
        assert_eq!(len(&queue), 1);
        let mut waiting = Vec::new();
        for _ in 0..1000 {
            let (done, ended) = oneshot::channel();
            waiting.push(ended);
            queue.push(LaneEvent::Quit {
                except: None,
                done: vec![done],
            });
        }
        assert_eq!(len(&queue), 2);
        for _ in 0..1000 {
            queue.push(LaneEvent::Withdraw);
        }
        assert_eq!(len(&queue), 4, "one for each message");
        drop(seats);
        queue.close();
        queue.push(LaneEvent::Cancel);
        assert_eq!(len(&queue), 0);
        let is_told = |ended: &mut oneshot::Receiver<()>| {
            ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        assert!(waiting.iter_mut().all(is_told));
    }
}
