//! The platform's limits: 30 messages a second in all, one a second to a chat, 20 a minute to a group, and whatever it
//! asks for itself.
//!
//! What counts is when a message really leaves: a turn that was promised for a moment, and comes late because the
//! computer is busy, would bring the ones behind it along.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use tokio::{sync::Mutex as Queue, time::Instant};

use super::options::TelegramOptions;
use crate::lock;

/// So many messages may go to a group within a minute.
const GROUP_MESSAGES_PER_MINUTE: usize = 19;
/// Of those, so many may be edits that only show progress.
const GROUP_EDITS_PER_MINUTE: usize = 12;
const RATE_WINDOW: Duration = Duration::from_secs(61);
/// When so many chats are remembered, those with nothing to remember are forgotten.
const PRUNE_THRESHOLD: usize = 4096;

pub(super) struct Limiter {
    pace: Duration,
    chat_pace: Duration,
    /// When the next message may go to anybody. Whoever holds it is next.
    next: Queue<Instant>,
    chats: Mutex<ChatBudgets>,
}

#[derive(Default)]
struct ChatBudgets {
    known: HashMap<i64, ChatBudget>,
    /// The platform wants silence in all of them until then.
    flooded: Option<Instant>,
}

#[derive(Default)]
struct ChatBudget {
    next: Option<Instant>,
    /// The last messages, of groups only.
    recent: VecDeque<Instant>,
    /// The platform wants silence until then.
    flooded: Option<Instant>,
}

impl ChatBudget {
    /// When the next message may go there, if at most so many go within a minute.
    fn earliest(&self, now: Instant, most: usize) -> Instant {
        let at = [self.next, self.flooded]
            .into_iter()
            .flatten()
            .fold(now, Instant::max);
        let full = self
            .recent
            .len()
            .checked_sub(most)
            .and_then(|at| self.recent.get(at));
        full.map_or(at, |oldest| at.max(*oldest + RATE_WINDOW))
    }
}

impl Limiter {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        let (pace, chat_pace) = (options.pace, options.chat_pace);
        Self {
            pace,
            chat_pace,
            next: Queue::new(Instant::now()),
            chats: Mutex::default(),
        }
    }

    /// Waits until a message may go to a chat.
    pub(super) async fn wait(&self, chat: i64) {
        loop {
            tokio::time::sleep_until(self.earliest(
                chat,
                GROUP_MESSAGES_PER_MINUTE,
                Instant::now(),
            ))
            .await;
            let mut next = self.next.lock().await;
            tokio::time::sleep_until(*next).await;
            // Another message to the chat may have been before this one.
            if self.try_take(chat, GROUP_MESSAGES_PER_MINUTE) {
                *next = Instant::now() + self.pace;
                return;
            }
        }
    }

    /// Whether something that is not needed may go to a chat right now.
    pub(super) fn try_acquire(&self, chat: i64) -> bool {
        let Ok(mut next) = self.next.try_lock() else {
            return false;
        };
        let is_free = *next <= Instant::now() && self.try_take(chat, GROUP_EDITS_PER_MINUTE);
        if is_free {
            *next = Instant::now() + self.pace;
        }
        is_free
    }

    fn earliest(&self, chat: i64, most: usize, now: Instant) -> Instant {
        let chats = lock(&self.chats);
        let own = chats
            .known
            .get(&chat)
            .map_or(now, |chat| chat.earliest(now, most));
        chats.flooded.map_or(own, |until| own.max(until))
    }

    /// Takes the chat's turn, if it has one now.
    fn try_take(&self, chat: i64, most: usize) -> bool {
        let now = Instant::now();
        if self.earliest(chat, most, now) > now {
            return false;
        }
        let mut chats = lock(&self.chats);
        if chats.known.len() > PRUNE_THRESHOLD {
            chats.known.retain(|_, chat| chat.earliest(now, 1) > now);
        }
        let entry = chats.known.entry(chat).or_default();
        while entry
            .recent
            .front()
            .is_some_and(|oldest| *oldest + RATE_WINDOW <= now)
        {
            entry.recent.pop_front();
        }
        entry.next = Some(now + self.chat_pace);
        if chat < 0 {
            entry.recent.push_back(now);
        }
        true
    }

    /// The platform wants silence. Once two chats are told so at a time, all of them are meant.
    pub(super) fn apply_flood_wait(&self, chat: i64, delay: Duration) {
        let now = Instant::now();
        let mut chats = lock(&self.chats);
        let is_flooded = |(other, entry): (&i64, &ChatBudget)| {
            *other != chat && entry.flooded.is_some_and(|until| until > now)
        };
        if chats.known.iter().any(is_flooded) {
            chats.flooded = chats.flooded.max(Some(now + delay));
        }
        chats.known.entry(chat).or_default().flooded = Some(now + delay);
    }
}
