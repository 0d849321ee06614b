//! A Bot API server on loopback: people write to the bot through it, and it keeps what the bot does.
//!
//! It behaves as the real one where that matters to a bot: it holds long polls until there is something, ends an older
//! poll when a newer one comes, forgets updates only when a later offset is asked for, numbers messages, refuses markup
//! and texts that the real one refuses. What goes wrong is scripted with [`BotServer::fault`] or decided for each call
//! by [`BotServer::faults`]. With `BUB_FIXTURES` set, every request is checked against the specification of the API.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value is `null` where there is nothing"
)]

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::watch;

mod chats;
mod markup;
mod params;
mod serve;
mod spec;

use crate::loopback::Loopback;
pub use chats::ApiCall;
use chats::Chats;
use spec::BotApiSpec;

/// The token of the bot.
pub const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
/// The user name of the bot.
pub const USERNAME: &str = "helpful_bot";
/// The id of the bot.
pub const BOT_ID: i64 = 110_201_543;

/// How a call goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// An error of the API, with its description.
    Refuse(u16, &'static str),
    /// Too many requests: again after so many seconds.
    Flood(u64),
    /// The group has that id now.
    Moved(i64),
    /// Not the API, but something before it answers: a status and a page.
    Page(u16),
    /// The connection ends before anything is done.
    Cut,
    /// It is done, and the connection ends before that is said.
    CutAfter,
    /// It is done, and said so much later.
    Slow(Duration),
    /// No answer ever.
    Hang,
}

type FaultFn = Box<dyn FnMut(&str, &Value) -> Option<Fault> + Send>;

/// A Bot API server. It stops, and closes every connection, when it is dropped.
pub struct BotServer {
    server: Loopback,
    shared: Arc<BotServerState>,
}

/// What the server's thread and the test both see.
struct BotServerState {
    chats: Mutex<Chats>,
    script: Mutex<Vec<(String, Fault)>>,
    decide: Mutex<Option<FaultFn>>,
    spec: Option<BotApiSpec>,
    requests: std::sync::atomic::AtomicUsize,
    connections: std::sync::atomic::AtomicUsize,
    /// Counts what happens, so that one can wait.
    changes: watch::Sender<u64>,
}

impl BotServerState {
    fn chats(&self) -> MutexGuard<'_, Chats> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn next_fault(&self, method: &str, params: &Value) -> Option<Fault> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = script.iter().position(|(name, _)| name == method) {
            return Some(script.remove(at).1);
        }
        drop(script);
        self.decide
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()?(method, params)
    }
}

impl BotServer {
    /// Starts a server on a free port of loopback.
    pub fn start() -> Self {
        let shared = Arc::new(BotServerState {
            chats: Mutex::default(),
            script: Mutex::default(),
            decide: Mutex::default(),
            spec: BotApiSpec::load(),
            requests: std::sync::atomic::AtomicUsize::default(),
            connections: std::sync::atomic::AtomicUsize::default(),
            changes: watch::Sender::new(0),
        });
        let serving = Arc::clone(&shared);
        Self {
            server: Loopback::start(move |socket| serve::connection(socket, Arc::clone(&serving))),
            shared,
        }
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The next call of that method goes wrong; several are used one after the other.
    pub fn fault(&self, method: &str, fault: Fault) -> &Self {
        self.shared
            .script
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((method.to_owned(), fault));
        self
    }

    /// Decides for every call whether it goes wrong.
    pub fn faults(
        &self,
        decide: impl FnMut(&str, &Value) -> Option<Fault> + Send + 'static,
    ) -> &Self {
        *self
            .shared
            .decide
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Box::new(decide));
        self
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) -> &Self {
        self.shared
            .script
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        *self
            .shared
            .decide
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
        self
    }

    /// Gives the bot an update; its id.
    #[expect(clippy::needless_pass_by_value, reason = "tests write it in place")]
    pub fn update(&self, kind: &str, content: Value) -> i64 {
        let id = self.shared.chats().update(kind, &content);
        self.shared.changed();
        id
    }

    /// Gives the bot an update that it had before.
    pub fn update_again(&self, id: i64, kind: &str, content: &Value) {
        let update = json!({"update_id": id, kind: content});
        self.shared.chats().updates.push_front((id, update));
        self.shared.changed();
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared
            .connections
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How many requests there were, also such as were no calls.
    pub fn requests(&self) -> usize {
        self.shared
            .requests
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Gives the bot a message of that chat; the chat's `type` comes from its id unless it is there. Its message id.
    pub fn message(&self, message: Value) -> i64 {
        let (content, id) = self.shared.chats().complete(message);
        self.update("message", content);
        id
    }

    /// A person writes to the bot in private; the message id.
    pub fn says(&self, user: i64, text: &str) -> i64 {
        self.message(
            json!({"chat": {"id": user, "type": "private"}, "from": person(user), "text": text}),
        )
    }

    /// A person writes in a group; the message id.
    pub fn says_in(&self, chat: i64, user: i64, text: &str) -> i64 {
        let chat = json!({"id": chat, "type": "supergroup", "title": "A group"});
        self.message(json!({"chat": chat, "from": person(user), "text": text}))
    }

    /// A person presses a button of a message.
    pub fn presses(&self, user: i64, chat: i64, message_id: i64, data: &str) -> i64 {
        let kind = if chat > 0 { "private" } else { "supergroup" };
        let message = self
            .shared
            .chats()
            .sent(chat, message_id)
            .unwrap_or_default();
        let message = json!({
            "message_id": message_id, "date": 1, "chat": {"id": chat, "type": kind}, "text": message["text"],
            "message_thread_id": message["message_thread_id"],
        });
        let query = json!({
            "id": format!("query{message_id}-{user}"), "from": person(user), "chat_instance": "1",
            "message": message, "data": data,
        });
        self.update("callback_query", query)
    }

    /// Offers a file for download.
    pub fn file(&self, file_id: &str, path: &str, bytes: Vec<u8>) -> &Self {
        self.shared
            .chats()
            .files
            .insert(file_id.to_owned(), (path.to_owned(), bytes));
        self
    }

    /// From now on the bot is told that this person has blocked it.
    pub fn block(&self, chat: i64) -> &Self {
        self.shared.chats().blocked.insert(chat);
        self
    }

    /// From now on there is no such topic.
    pub fn delete_topic(&self, chat: i64, thread: i64) -> &Self {
        self.shared.chats().deleted_topics.insert((chat, thread));
        self
    }

    /// A webhook that somebody left behind.
    pub fn leave_webhook(&self, url: &str) -> &Self {
        url.clone_into(&mut self.shared.chats().webhook);
        self
    }

    /// Another token is the right one now.
    pub fn revoke(&self) -> &Self {
        self.shared.chats().is_revoked = true;
        self
    }

    /// All calls but those that only ask for updates, in the order of arrival.
    pub fn calls(&self) -> Vec<ApiCall> {
        self.shared
            .chats()
            .calls
            .iter()
            .filter(|call| call.method != "getUpdates")
            .cloned()
            .collect()
    }

    /// The calls of one method.
    pub fn calls_of(&self, method: &str) -> Vec<ApiCall> {
        self.shared
            .chats()
            .calls
            .iter()
            .filter(|call| call.method == method)
            .cloned()
            .collect()
    }

    /// The texts that stand in a chat now by the bot, in order, edits applied.
    pub fn texts(&self, chat: i64) -> Vec<String> {
        self.shared.chats().texts(chat)
    }

    /// How many updates the bot has not confirmed.
    pub fn pending(&self) -> usize {
        self.shared.chats().updates.len()
    }

    /// What was wrong with the requests.
    pub fn violations(&self) -> Vec<String> {
        self.shared.chats().violations.clone()
    }

    /// Waits until `look` finds something.
    pub async fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.shared.changes.subscribe();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            // The sender lives as long as the server.
            let _ = changes.changed().await;
        }
    }

    /// Waits until there are so many texts by the bot in a chat.
    pub async fn wait_texts(&self, chat: i64, count: usize) -> Vec<String> {
        self.wait_for(|server| Some(server.texts(chat)).filter(|texts| texts.len() >= count))
            .await
    }

    /// Waits until that method was called so often.
    pub async fn wait_calls(&self, method: &str, count: usize) -> Vec<ApiCall> {
        self.wait_for(|server| Some(server.calls_of(method)).filter(|calls| calls.len() >= count))
            .await
    }

    /// Waits until the bot has confirmed all updates.
    pub async fn wait_confirmed(&self) {
        self.wait_for(|server| (server.pending() == 0).then_some(()))
            .await;
    }
}

/// A user as the API describes one.
pub fn person(id: i64) -> Value {
    json!({"id": id, "is_bot": false, "first_name": format!("User {id}"), "username": format!("user{id}")})
}
