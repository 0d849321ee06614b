//! Facts about chats that outlive the process: groups with a new id, pauses that the platform asked for, and approval
//! requests with buttons.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{delivery_log::replace_file, lock};

/// Maximum number of recorded moves, pauses and questions, each. The first one by id is removed.
const MAX_STORED: usize = 1_000;
/// Maximum number of ended questions that are remembered, because they may still be on their way to the chat.
const MAX_ENDED: usize = 100;
/// Maximum number of moves of one group.
const MAX_MOVES: usize = 8;

/// A message with the buttons of an approval request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) chat: i64,
    pub(super) message_id: i64,
    pub(super) text: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredChats {
    /// New ids of groups that were upgraded, by old id.
    moved: BTreeMap<i64, i64>,
    /// Until when the platform accepts no messages to a chat, in milliseconds since 1970.
    paused: BTreeMap<i64, u64>,
    /// Messages with buttons, by the id of the approval request.
    questions: BTreeMap<String, Question>,
}

pub(super) struct ChatStore {
    path: PathBuf,
    stored: Mutex<Option<StoredChats>>,
    /// Ids of approval requests that ended before their question was sent.
    ended: Mutex<VecDeque<String>>,
}

impl ChatStore {
    pub(super) fn new(home: &Path) -> Self {
        Self {
            path: home.join("telegram").join("chats.json"),
            stored: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Records the new id of a group.
    pub(super) fn record_move(&self, from: i64, to: i64) {
        if from == to || self.read(|stored| stored.moved.get(&from) == Some(&to)) {
            return;
        }
        tracing::info!(from, to, "telegram.group_moved");
        self.update(|stored| stored.moved.insert(from, to));
    }

    /// Returns the id that a chat has now.
    pub(super) fn current_id(&self, chat: i64) -> i64 {
        self.read(|stored| {
            (0..MAX_MOVES).fold(chat, |id, _| stored.moved.get(&id).copied().unwrap_or(id))
        })
    }

    /// Returns the id and all earlier ids of a chat, newest first. The session is named after the first id.
    pub(super) fn known_ids(&self, chat: i64) -> Vec<i64> {
        self.read(|stored| {
            let mut ids = vec![chat];
            while let Some((from, _)) = stored
                .moved
                .iter()
                .find(|(from, to)| ids.last() == Some(to) && !ids.contains(from))
            {
                ids.push(*from);
            }
            ids
        })
    }

    /// Records that the platform accepts no messages to a chat for some time.
    pub(super) fn record_pause(&self, chat: i64, delay: Duration) {
        let until = now_ms().saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self.update(|stored| {
            stored.paused.retain(|_, until| *until > now_ms());
            stored.paused.insert(chat, until);
        });
    }

    /// Returns the paused chats and how long each is paused.
    pub(super) fn pauses(&self) -> Vec<(i64, Duration)> {
        let remaining = |(chat, until): (&i64, &u64)| {
            let delay = until.checked_sub(now_ms()).filter(|delay| *delay > 0)?;
            Some((*chat, Duration::from_millis(delay)))
        };
        self.read(|stored| stored.paused.iter().filter_map(remaining).collect())
    }

    /// Records a message with buttons. Returns the question instead if its approval request has ended.
    pub(super) fn open_question(&self, id: &str, question: Question) -> Option<Question> {
        let mut ended = lock(&self.ended);
        if let Some(index) = ended.iter().position(|other| other == id) {
            ended.remove(index);
            return Some(question);
        }
        self.update(|stored| drop(stored.questions.insert(id.to_owned(), question)));
        None
    }

    /// Removes and returns the message of an approval request that has ended.
    pub(super) fn end_question(&self, id: &str) -> Option<Question> {
        let mut ended = lock(&self.ended);
        let question = self.take_question(|other, _| other == id);
        if question.is_none() {
            ended.push_back(id.to_owned());
            if ended.len() > MAX_ENDED {
                ended.pop_front();
            }
        }
        question
    }

    /// Removes and returns a message with buttons.
    pub(super) fn take_question(
        &self,
        is_selected: impl Fn(&str, &Question) -> bool,
    ) -> Option<Question> {
        let find = |stored: &StoredChats| {
            let mut questions = stored.questions.iter();
            let found = questions.find(|(id, question)| is_selected(id, question));
            found.map(|(id, _)| id.clone())
        };
        let id = self.read(find)?;
        self.update(|stored| stored.questions.remove(&id))
    }

    fn read<T>(&self, function: impl FnOnce(&StoredChats) -> T) -> T {
        let mut stored = lock(&self.stored);
        function(stored.get_or_insert_with(|| load(&self.path)))
    }

    fn update<T>(&self, function: impl FnOnce(&mut StoredChats) -> T) -> T {
        let mut stored = lock(&self.stored);
        let stored = stored.get_or_insert_with(|| load(&self.path));
        let result = function(stored);
        while stored.moved.len() > MAX_STORED {
            stored.moved.pop_first();
        }
        while stored.paused.len() > MAX_STORED {
            stored.paused.pop_first();
        }
        while stored.questions.len() > MAX_STORED {
            stored.questions.pop_first();
        }
        let written = serde_json::to_vec(stored)
            .map_err(std::io::Error::from)
            .and_then(|content| replace_file(&self.path, &content));
        if let Err(error) = written {
            let hint = "after a restart, a group with a new id may start a new session";
            tracing::warn!(%error, hint, "telegram.chats_not_stored");
        }
        result
    }
}

fn load(path: &Path) -> StoredChats {
    let content = std::fs::read(path).unwrap_or_default();
    if content.is_empty() {
        return StoredChats::default();
    }
    serde_json::from_slice(&content).unwrap_or_else(|error| {
        tracing::warn!(%error, path = %path.display(), "telegram.chats_unreadable");
        StoredChats::default()
    })
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
