//! The platform's rate limits: 30 messages per second in total, one per second per chat, 20 per minute per group, and
//! the waits that the platform asks for.
//!
//! The limiter counts from the time at which a message is actually sent. If it reserved future times instead, messages
//! delayed by a busy machine would be sent together with later ones.

use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use tokio::time::Instant;

use super::options::TelegramOptions;
use crate::lock;

/// Maximum number of messages to a group per minute, one less than the platform allows.
const GROUP_MESSAGES_PER_MINUTE: usize = 19;
/// Number of messages to a group per minute at which previews in the group are no longer sent or edited.
const GROUP_EDITS_PER_MINUTE: usize = 12;
const RATE_WINDOW: Duration = Duration::from_secs(61);
/// Number of tracked chats above which idle ones are removed.
const PRUNE_THRESHOLD: usize = 4096;

pub(super) struct Limiter {
    message_interval: Duration,
    chat_interval: Duration,
    /// When the next message may be sent to any chat. The task that holds the lock is next.
    next: tokio::sync::Mutex<Instant>,
    chats: Mutex<ChatBudgets>,
}

#[derive(Default)]
struct ChatBudgets {
    budgets: HashMap<i64, ChatBudget>,
    /// Until when the platform accepts no messages to any chat.
    paused_until: Option<Instant>,
}

#[derive(Default)]
struct ChatBudget {
    next: Option<Instant>,
    /// The times of the last messages; only for groups.
    recent: VecDeque<Instant>,
    /// Until when the platform accepts no messages to this chat.
    paused_until: Option<Instant>,
}

impl ChatBudget {
    /// Returns the earliest time for the next message, if at most `max_count` messages per minute are allowed.
    fn earliest_send_time(&self, now: Instant, max_count: usize) -> Instant {
        let at = [self.next, self.paused_until]
            .into_iter()
            .flatten()
            .fold(now, Instant::max);
        let full = self
            .recent
            .len()
            .checked_sub(max_count)
            .and_then(|at| self.recent.get(at));
        full.map_or(at, |oldest| at.max(*oldest + RATE_WINDOW))
    }
}

impl Limiter {
    pub(super) fn new(options: &TelegramOptions) -> Self {
        let (message_interval, chat_interval) = (options.message_interval, options.chat_interval);
        Self {
            message_interval,
            chat_interval,
            next: tokio::sync::Mutex::new(Instant::now()),
            chats: Mutex::default(),
        }
    }

    /// Waits until a message may be sent to a chat.
    pub(super) async fn wait_to_send(&self, chat: i64) {
        loop {
            tokio::time::sleep_until(self.earliest_send_time(
                chat,
                GROUP_MESSAGES_PER_MINUTE,
                Instant::now(),
            ))
            .await;
            let mut next = self.next.lock().await;
            tokio::time::sleep_until(*next).await;
            // Another task may have sent a message to the chat in the meantime.
            if self.try_reserve(chat, GROUP_MESSAGES_PER_MINUTE) {
                *next = Instant::now() + self.message_interval;
                return;
            }
        }
    }

    /// Returns whether an optional message, such as a preview, may be sent to a chat now, and counts it if so.
    pub(super) fn try_acquire(&self, chat: i64) -> bool {
        let Ok(mut next) = self.next.try_lock() else {
            return false;
        };
        let is_free = *next <= Instant::now() && self.try_reserve(chat, GROUP_EDITS_PER_MINUTE);
        if is_free {
            *next = Instant::now() + self.message_interval;
        }
        is_free
    }

    fn earliest_send_time(&self, chat: i64, max_count: usize, now: Instant) -> Instant {
        let chats = lock(&self.chats);
        let chat_earliest = chats
            .budgets
            .get(&chat)
            .map_or(now, |chat| chat.earliest_send_time(now, max_count));
        chats
            .paused_until
            .map_or(chat_earliest, |until| chat_earliest.max(until))
    }

    /// Counts a message to the chat if it may be sent now. Returns whether it may.
    fn try_reserve(&self, chat: i64, max_count: usize) -> bool {
        let now = Instant::now();
        if self.earliest_send_time(chat, max_count, now) > now {
            return false;
        }
        let mut chats = lock(&self.chats);
        if chats.budgets.len() > PRUNE_THRESHOLD {
            chats
                .budgets
                .retain(|_, chat| chat.earliest_send_time(now, 1) > now);
        }
        let entry = chats.budgets.entry(chat).or_default();
        while entry
            .recent
            .front()
            .is_some_and(|oldest| *oldest + RATE_WINDOW <= now)
        {
            entry.recent.pop_front();
        }
        entry.next = Some(now + self.chat_interval);
        if chat < 0 {
            entry.recent.push_back(now);
        }
        true
    }

    /// Returns how long a chat is still paused.
    pub(super) fn remaining_pause(&self, chat: i64) -> Duration {
        let (now, chats) = (Instant::now(), lock(&self.chats));
        let chat = chats.budgets.get(&chat).and_then(|chat| chat.paused_until);
        let until = chat.max(chats.paused_until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Pauses a chat.
    pub(super) fn pause_chat(&self, chat: i64, delay: Duration) {
        let until = Some(Instant::now() + delay);
        lock(&self.chats)
            .budgets
            .entry(chat)
            .or_default()
            .paused_until = until;
    }

    /// Pauses a chat as the platform asks. If another chat is paused, too, all chats are paused.
    pub(super) fn apply_flood_wait(&self, chat: i64, delay: Duration) {
        let now = Instant::now();
        let mut chats = lock(&self.chats);
        let is_paused = |(other, entry): (&i64, &ChatBudget)| {
            *other != chat && entry.paused_until.is_some_and(|until| until > now)
        };
        if chats.budgets.iter().any(is_paused) {
            chats.paused_until = chats.paused_until.max(Some(now + delay));
        }
        chats.budgets.entry(chat).or_default().paused_until = Some(now + delay);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::{task::JoinSet, time::Instant};

    use super::{Limiter, TelegramOptions};

    fn min_distance(times: &[Instant], count: usize) -> Duration {
        let distances = times
            .windows(count + 1)
            .map(|window| window[count] - window[0]);
        distances.min().unwrap()
    }

    /// The clock is paused: the times are exact, however busy the machine is.
    #[tokio::test(start_paused = true)]
    async fn the_limits_of_the_platform_hold_in_every_window_also_after_stalls() {
        const GROUP: i64 = -1;
        let options = TelegramOptions::with_home("/nowhere".into());
        let (limiter, mut sends) = (Arc::new(Limiter::new(&options)), JoinSet::new());
        for chat in (1..=40).cycle().take(200).chain([GROUP; 45]) {
            let limiter = Arc::clone(&limiter);
            sends.spawn(async move {
                limiter.wait_to_send(chat).await;
                (Instant::now(), chat)
            });
        }
        // The process does not run for a while, so that many timers are late at once.
        let stalls = tokio::spawn(async {
            for stall in [40, 700, 5, 1_500, 90, 300].into_iter().cycle() {
                tokio::time::sleep(Duration::from_millis(210)).await;
                tokio::time::advance(Duration::from_millis(stall)).await;
            }
        });
        let mut sent = sends.join_all().await;
        stalls.abort();
        sent.sort();
        let times: Vec<Instant> = sent.iter().map(|(at, _)| *at).collect();
        assert_eq!(times.len(), 245);
        assert!(min_distance(&times, 1) >= options.message_interval);
        assert!(min_distance(&times, 30) > Duration::from_secs(1));
        for chat in (1..=40).chain([GROUP]) {
            let own = sent.iter().filter(|(_, to)| *to == chat);
            let own: Vec<Instant> = own.map(|(at, _)| *at).collect();
            assert!(min_distance(&own, 1) >= options.chat_interval);
            if chat == GROUP {
                assert!(min_distance(&own, 20) > Duration::from_mins(1));
            }
        }
    }
}
