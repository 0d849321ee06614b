//! State of the server (pending updates, messages in chats, files) and the effect of each method.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns `null`"
)]

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    time::Instant,
};

use serde_json::{Value, json};

use super::{BOT_ID, USERNAME, markup};

/// A call as received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ApiCall {
    /// Name of the method.
    pub method: String,
    /// Parameters; an uploaded file is `{"filename", "size"}`.
    pub params: Value,
    /// Whether the call was executed.
    pub is_done: bool,
    /// Time at which the server handled the call.
    pub at: Instant,
    /// Path before `/bot`. With an own base URL per process, a test can tell their calls apart.
    pub base_path: String,
}

impl ApiCall {
    /// Returns a text parameter.
    pub fn text(&self, name: &str) -> &str {
        self.params[name].as_str().unwrap_or_default()
    }

    /// Returns a number parameter.
    pub fn number(&self, name: &str) -> i64 {
        to_number(&self.params[name]).unwrap_or_default()
    }
}

/// Converts a value to a number. Form parameters contain numbers as text.
pub(super) fn to_number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// Result of a call, or an error with status and description.
pub(super) type ApiResult = Result<Value, (u16, String)>;

#[derive(Default)]
pub(super) struct Chats {
    pub(super) updates: VecDeque<(i64, Value)>,
    last_update: i64,
    last_message: i64,
    pub(super) calls: Vec<ApiCall>,
    messages: BTreeMap<(i64, i64), Value>,
    pub(super) files: HashMap<String, (String, Vec<u8>)>,
    pub(super) blocked: HashSet<i64>,
    pub(super) deleted_topics: HashSet<(i64, i64)>,
    pub(super) webhook: String,
    pub(super) is_revoked: bool,
    /// Number of the newest poll.
    pub(super) poll: u64,
    pub(super) violations: Vec<String>,
}

impl Chats {
    pub(super) fn add_update(&mut self, kind: &str, content: &Value) -> i64 {
        // Update ids may start anywhere and have gaps.
        self.last_update = self.last_update.max(900_000_000) + 1;
        let update = json!({"update_id": self.last_update, kind: content});
        self.updates.push_back((self.last_update, update));
        self.last_update
    }

    /// Fills in the fields that every message has.
    pub(super) fn complete_message(&mut self, mut message: Value) -> (Value, i64) {
        let id = to_number(&message["message_id"]).unwrap_or_else(|| self.next_message());
        message["message_id"] = id.into();
        if message["date"].is_null() {
            message["date"] = 1_760_000_000.into();
        }
        if let Some(text) = message["text"]
            .as_str()
            .filter(|text| text.starts_with('/'))
            && message["entities"].is_null()
        {
            let length = text
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .encode_utf16()
                .count();
            message["entities"] = json!([{"type": "bot_command", "offset": 0, "length": length}]);
        }
        (message, id)
    }

    fn next_message(&mut self) -> i64 {
        self.last_message += 1;
        self.last_message
    }

    pub(super) fn sent_message(&self, chat: i64, message_id: i64) -> Option<Value> {
        self.messages.get(&(chat, message_id)).cloned()
    }

    pub(super) fn texts(&self, chat: i64) -> Vec<String> {
        let messages = self.messages.range((chat, 0)..=(chat, i64::MAX));
        messages
            .map(|(_, message)| message["text"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns the updates from an offset on and confirms earlier ones.
    pub(super) fn take_updates(&mut self, offset: i64) -> Vec<Value> {
        if offset < 0 {
            let keep = usize::try_from(-offset).unwrap_or(1);
            while self.updates.len() > keep {
                self.updates.pop_front();
            }
        }
        while self.updates.front().is_some_and(|(id, _)| *id < offset) {
            self.updates.pop_front();
        }
        self.updates
            .iter()
            .take(100)
            .map(|(_, update)| update.clone())
            .collect()
    }

    /// Executes a call.
    pub(super) fn execute(&mut self, method: &str, params: &Value) -> ApiResult {
        match method {
            "getMe" => Ok(
                json!({"id": BOT_ID, "is_bot": true, "first_name": "Helpful", "username": USERNAME}),
            ),
            "deleteWebhook" => {
                self.webhook.clear();
                if params["drop_pending_updates"] == true {
                    self.updates.clear();
                }
                Ok(true.into())
            }
            "sendMessage" => self.send_message(params, "text"),
            "sendPhoto" | "sendDocument" | "sendAudio" | "sendVideo" | "sendVoice"
            | "sendAnimation" => self.send_message(params, "caption"),
            "sendMediaGroup" => {
                let items = params["media"].as_array().cloned().unwrap_or_default();
                let sent = items.into_iter().map(|mut item| {
                    item["chat_id"] = params["chat_id"].clone();
                    self.send_message(&item, "caption")
                });
                sent.collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            "editMessageText" => self.edit_message(params),
            "deleteMessage" => self.delete_message(params),
            "sendChatAction" => self.check_chat(params).map(|_| true.into()),
            "getFile" => self.get_file(params),
            _ => Ok(true.into()),
        }
    }

    fn check_chat(&self, params: &Value) -> Result<i64, (u16, String)> {
        let bad_request = |text: &str| (400, format!("Bad Request: {text}"));
        let chat = to_number(&params["chat_id"]).ok_or_else(|| bad_request("chat not found"))?;
        if self.blocked.contains(&chat) {
            return Err((403, "Forbidden: bot was blocked by the user".to_owned()));
        }
        let thread = to_number(&params["message_thread_id"]);
        if thread.is_some_and(|thread| self.deleted_topics.contains(&(chat, thread))) {
            return Err(bad_request("message thread not found"));
        }
        Ok(chat)
    }

    fn send_message(&mut self, params: &Value, text_name: &str) -> ApiResult {
        let chat = self.check_chat(params)?;
        let max_units = if text_name == "text" { 4096 } else { 1024 };
        let text = markup::plain_text(params, text_name, max_units)
            .map_err(|text| (400, format!("Bad Request: {text}")))?;
        let id = self.next_message();
        let kind = if chat > 0 { "private" } else { "supergroup" };
        let mut message = json!({
            "message_id": id, "date": 1_760_000_000, "chat": {"id": chat, "type": kind}, "text": text,
            "from": {"id": BOT_ID, "is_bot": true, "first_name": "Helpful", "username": USERNAME},
        });
        if let Some(thread) = to_number(&params["message_thread_id"]) {
            message["message_thread_id"] = thread.into();
        }
        if !params["reply_markup"].is_null() {
            message["reply_markup"] = params["reply_markup"].clone();
        }
        self.messages.insert((chat, id), message.clone());
        Ok(message)
    }

    fn edit_message(&mut self, params: &Value) -> ApiResult {
        let bad_request = |text: &str| (400, format!("Bad Request: {text}"));
        let chat = self.check_chat(params)?;
        let text = markup::plain_text(params, "text", 4096).map_err(|text| bad_request(&text))?;
        let id = to_number(&params["message_id"]).unwrap_or_default();
        let message = self
            .messages
            .get_mut(&(chat, id))
            .ok_or_else(|| bad_request("message to edit not found"))?;
        if message["text"] == text.as_str() && message["reply_markup"] == params["reply_markup"] {
            return Err(bad_request(
                "message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message",
            ));
        }
        message["text"] = text.into();
        message["reply_markup"] = params["reply_markup"].clone();
        Ok(message.clone())
    }

    fn delete_message(&mut self, params: &Value) -> ApiResult {
        let chat = self.check_chat(params)?;
        let id = to_number(&params["message_id"]).unwrap_or_default();
        match self.messages.remove(&(chat, id)) {
            Some(_) => Ok(true.into()),
            None => Err((400, "Bad Request: message to delete not found".to_owned())),
        }
    }

    fn get_file(&self, params: &Value) -> ApiResult {
        let id = params["file_id"].as_str().unwrap_or_default();
        match self.files.get(id) {
            None => Err((
                400,
                "Bad Request: wrong file_id or the file is temporarily unavailable".to_owned(),
            )),
            Some((_, bytes)) if bytes.len() > 20 * 1024 * 1024 => {
                Err((400, "Bad Request: file is too big".to_owned()))
            }
            Some((path, bytes)) => Ok(
                json!({"file_id": id, "file_unique_id": id, "file_size": bytes.len(), "file_path": path}),
            ),
        }
    }
}
