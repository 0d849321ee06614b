//! A Bot API server on loopback with simulated users; it records what the bot does.
//!
//! It behaves like the real server where that matters to a bot. It holds long polls until an update
//! arrives, and ends an older poll when a newer one comes. It drops updates only after a later
//! offset, numbers messages, and rejects invalid markup and texts. Faults are scripted with
//! [`BotServer::add_fault`] or decided per call by [`BotServer::set_fault_fn`]. With `BUB_FIXTURES` set,
//! every request is checked against the specification of the API.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns `null`"
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

/// Token of the bot.
pub const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
/// User name of the bot.
pub const USERNAME: &str = "helpful_bot";
/// Id of the bot.
pub const BOT_ID: i64 = 110_201_543;

/// Fault of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// An error of the API, with its description.
    Refuse(u16, &'static str),
    /// Too many requests; retry after this number of seconds.
    Flood(u64),
    /// The group has this new id.
    Moved(i64),
    /// A proxy answers with a status and an HTML page.
    Page(u16),
    /// The connection closes before the call is executed.
    Cut,
    /// The call is executed, but the connection closes before the response.
    CutAfter,
    /// The call is executed, but the response is delayed.
    Slow(Duration),
    /// The server never responds.
    Hang,
}

type FaultFn = Box<dyn FnMut(&str, &Value) -> Option<Fault> + Send>;

/// A Bot API server. It stops and closes every connection when it is dropped.
pub struct BotServer {
    server: Loopback,
    shared: Arc<BotServerState>,
}

/// State shared by the server's thread and the test.
struct BotServerState {
    chats: Mutex<Chats>,
    script: Mutex<Vec<(String, Fault)>>,
    decide: Mutex<Option<FaultFn>>,
    spec: Option<BotApiSpec>,
    requests: std::sync::atomic::AtomicUsize,
    connections: std::sync::atomic::AtomicUsize,
    /// Counter of changes. It wakes the tasks that wait for a change.
    changes: watch::Sender<u64>,
}

impl BotServerState {
    fn chats(&self) -> MutexGuard<'_, Chats> {
        self.chats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_waiters(&self) {
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
    /// Starts a server on a free loopback port.
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
            server: Loopback::start(move |socket| {
                serve::serve_connection(socket, Arc::clone(&serving))
            }),
            shared,
        }
    }

    /// Returns `http://127.0.0.1:PORT`, without a trailing slash.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Makes the next call of a method fail. Several faults are used in order.
    pub fn add_fault(&self, method: &str, fault: Fault) -> &Self {
        self.shared
            .script
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((method.to_owned(), fault));
        self
    }

    /// Sets a function that decides per call whether it fails.
    pub fn set_fault_fn(
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

    /// Removes all faults.
    pub fn clear_faults(&self) -> &Self {
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

    /// Adds an update and returns its id.
    #[expect(clippy::needless_pass_by_value, reason = "tests write it in place")]
    pub fn add_update(&self, kind: &str, content: Value) -> i64 {
        let id = self.shared.chats().add_update(kind, &content);
        self.shared.notify_waiters();
        id
    }

    /// Adds an update with an id that the bot has already received.
    pub fn repeat_update(&self, id: i64, kind: &str, content: &Value) {
        let update = json!({"update_id": id, kind: content});
        self.shared.chats().updates.push_front((id, update));
        self.shared.notify_waiters();
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared
            .connections
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the number of requests, including those that are not calls.
    pub fn requests(&self) -> usize {
        self.shared
            .requests
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Adds a message and returns its message id. The chat's `type` follows from its id if missing.
    pub fn add_message(&self, message: Value) -> i64 {
        let (content, id) = self.shared.chats().complete_message(message);
        self.add_update("message", content);
        id
    }

    /// Adds a private message of a user and returns its message id.
    pub fn send_private(&self, user: i64, text: &str) -> i64 {
        self.add_message(
            json!({"chat": {"id": user, "type": "private"}, "from": user_object(user), "text": text}),
        )
    }

    /// Adds a group message of a user and returns its message id.
    pub fn send_to_group(&self, chat: i64, user: i64, text: &str) -> i64 {
        let chat = json!({"id": chat, "type": "supergroup", "title": "A group"});
        self.add_message(json!({"chat": chat, "from": user_object(user), "text": text}))
    }

    /// Adds the press of a message button by a user.
    pub fn press_button(&self, user: i64, chat: i64, message_id: i64, data: &str) -> i64 {
        let kind = if chat > 0 { "private" } else { "supergroup" };
        let message = self
            .shared
            .chats()
            .sent_message(chat, message_id)
            .unwrap_or_default();
        let message = json!({
            "message_id": message_id, "date": 1, "chat": {"id": chat, "type": kind}, "text": message["text"],
            "message_thread_id": message["message_thread_id"],
        });
        let query = json!({
            "id": format!("query{message_id}-{user}"), "from": user_object(user), "chat_instance": "1",
            "message": message, "data": data,
        });
        self.add_update("callback_query", query)
    }

    /// Offers a file for download.
    pub fn add_file(&self, file_id: &str, path: &str, bytes: Vec<u8>) -> &Self {
        self.shared
            .chats()
            .files
            .insert(file_id.to_owned(), (path.to_owned(), bytes));
        self
    }

    /// Makes a user block the bot from now on.
    pub fn block_bot(&self, chat: i64) -> &Self {
        self.shared.chats().blocked.insert(chat);
        self
    }

    /// Deletes a topic.
    pub fn delete_topic(&self, chat: i64, thread: i64) -> &Self {
        self.shared.chats().deleted_topics.insert((chat, thread));
        self
    }

    /// Sets a webhook, as if left behind by another program.
    pub fn set_webhook(&self, url: &str) -> &Self {
        url.clone_into(&mut self.shared.chats().webhook);
        self
    }

    /// Makes the token invalid.
    pub fn revoke_token(&self) -> &Self {
        self.shared.chats().is_revoked = true;
        self
    }

    /// Returns all calls except polls for updates, in the order of arrival.
    pub fn calls(&self) -> Vec<ApiCall> {
        self.shared
            .chats()
            .calls
            .iter()
            .filter(|call| call.method != "getUpdates")
            .cloned()
            .collect()
    }

    /// Returns the calls of one method.
    pub fn calls_to(&self, method: &str) -> Vec<ApiCall> {
        self.shared
            .chats()
            .calls
            .iter()
            .filter(|call| call.method == method)
            .cloned()
            .collect()
    }

    /// Returns the bot's texts in a chat, in order and with edits applied.
    pub fn texts(&self, chat: i64) -> Vec<String> {
        self.shared.chats().texts(chat)
    }

    /// Returns the number of unconfirmed updates.
    pub fn pending(&self) -> usize {
        self.shared.chats().updates.len()
    }

    /// Returns the violations of the API specification.
    pub fn violations(&self) -> Vec<String> {
        self.shared.chats().violations.clone()
    }

    /// Waits until `condition` returns a value.
    pub async fn wait_for<T>(&self, condition: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.shared.changes.subscribe();
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            // The sender lives as long as the server.
            let _ = changes.changed().await;
        }
    }

    /// Waits until the bot has sent `count` texts to a chat.
    pub async fn wait_for_texts(&self, chat: i64, count: usize) -> Vec<String> {
        self.wait_for(|server| Some(server.texts(chat)).filter(|texts| texts.len() >= count))
            .await
    }

    /// Waits until a method was called `count` times.
    pub async fn wait_for_calls(&self, method: &str, count: usize) -> Vec<ApiCall> {
        self.wait_for(|server| Some(server.calls_to(method)).filter(|calls| calls.len() >= count))
            .await
    }

    /// Waits until the bot has confirmed all updates.
    pub async fn wait_until_confirmed(&self) {
        self.wait_for(|server| (server.pending() == 0).then_some(()))
            .await;
    }
}

/// Returns a user object of the API.
pub fn user_object(id: i64) -> Value {
    json!({"id": id, "is_bot": false, "first_name": format!("User {id}"), "username": format!("user{id}")})
}
