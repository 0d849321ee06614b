//! The platform's limits: 30 messages a second in all, one a second to a chat, 20 a minute to a group, and whatever it
//! asks for itself.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use tokio::time::Instant;

use super::options::TelegramOptions;
use crate::journal::lock;

/// So many messages may go to a group within a minute.
const GROUP_MINUTE: usize = 19;
/// Of those, so many may be edits that only show progress.
const GROUP_EDITS: usize = 12;
const MINUTE: Duration = Duration::from_secs(61);
/// When so many chats are remembered, those with nothing to remember are forgotten.
const MANY: usize = 4096;

pub(super) struct Limiter {
    pace: Duration,
    chat_pace: Duration,
    state: Mutex<State>,
}

struct State {
    /// When the next message may go to anybody.
    next: Instant,
    chats: HashMap<i64, Chat>,
}

#[derive(Default)]
struct Chat {
    next: Option<Instant>,
    /// The last messages, of groups only.
    recent: VecDeque<Instant>,
    /// The platform asked for silence until then.
    flooded: Option<Instant>,
}

impl Chat {
    /// When the next message may go there, if at most so many go within a minute.
    fn earliest(&self, now: Instant, most: usize) -> Instant {
        let at = [self.next, self.flooded].into_iter().flatten().fold(now, Instant::max);
        let full = self.recent.len().checked_sub(most).and_then(|at| self.recent.get(at));
        full.map_or(at, |oldest| at.max(*oldest + MINUTE))
    }
}

impl Limiter {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        let state = State { next: Instant::now(), chats: HashMap::new() };
        Self { pace: options.pace, chat_pace: options.chat_pace, state: Mutex::new(state) }
    }

    /// Waits until a message may go to a chat.
    pub(super) async fn wait(&self, chat: i64) {
        loop {
            let (at, is_taken) = self.take(chat, GROUP_MINUTE, Duration::MAX);
            tokio::time::sleep_until(at).await;
            if is_taken {
                return;
            }
        }
    }

    /// Whether something that is not needed may go to a chat right now.
    pub(super) fn try_now(&self, chat: i64) -> bool {
        self.take(chat, GROUP_EDITS, self.pace).1
    }

    /// When the chat has room: takes its turn, and says when that is. Otherwise says when to ask again.
    fn take(&self, chat: i64, most: usize, longest: Duration) -> (Instant, bool) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        if state.chats.len() > MANY {
            state.chats.retain(|_, chat| chat.earliest(now, 1) > now);
        }
        let next = state.next;
        let entry = state.chats.entry(chat).or_default();
        while entry.recent.front().is_some_and(|oldest| *oldest + MINUTE <= now) {
            entry.recent.pop_front();
        }
        let earliest = entry.earliest(now, most);
        let at = next.max(now);
        if earliest > now || at - now > longest {
            return (earliest, false);
        }
        entry.next = Some(at + self.chat_pace);
        if chat < 0 {
            entry.recent.push_back(at);
        }
        state.next = at + self.pace;
        (at, true)
    }

    /// The platform wants silence. Once two chats are told so at a time, all of them are meant.
    pub(super) fn flooded(&self, chat: i64, delay: Duration) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let is_flooded =
            |(other, entry): (&i64, &Chat)| *other != chat && entry.flooded.is_some_and(|until| until > now);
        if state.chats.iter().any(is_flooded) {
            state.next = state.next.max(now + delay);
        }
        state.chats.entry(chat).or_default().flooded = Some(now + delay);
    }
}
