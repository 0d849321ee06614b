//! Parses and checks the request that a client posts.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use bub::kernel::{
    ChannelMessage, Envelope, Inbound, InboundReceipt, MediaItem, MessageKind, Role, Sender,
    UntrustedSource, command_line,
};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use super::{CHANNEL_NAME, callback, options::WebhookOptions};
use crate::response::HttpError;
use bub::gateway::fields;

/// Message field that requests a stream, regardless of the setting `stream_output`.
pub(super) const STREAM_OUTPUT_FIELD: &str = "stream_output";

/// Maximum length of ids and names in bytes.
const MAX_NAME_BYTES: usize = 200;
/// Maximum length of an idempotency key in bytes.
const MAX_KEY_BYTES: usize = 256;
const REQUEST_FIELDS: [&str; 10] = [
    "content",
    "chat_id",
    "session_id",
    "sender_id",
    "sender_name",
    "context",
    "media",
    "reply",
    "callback_url",
    "idempotency_key",
];

/// How a client receives the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMode {
    /// In the response.
    Sync,
    /// As a stream in the response.
    Stream,
    /// Posted to the callback URL.
    Callback,
    /// Not sent. The client can request it later by message id.
    None,
}

/// A message that a client posted, and how the client receives the reply.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) reply: ReplyMode,
    pub(super) callback_url: Option<String>,
    pub(super) fingerprint: u64,
    pub(super) receipt: Arc<InboundReceipt>,
    pub(super) inbound: Inbound,
}

impl Submission {
    /// Parses the body and the headers of a request.
    pub(super) fn parse(
        body: &[u8],
        headers: &HeaderMap,
        options: &WebhookOptions,
    ) -> Result<Self, HttpError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            bad_request_error(
                "malformed_json",
                format!("invalid body: not valid JSON: {error}; send a JSON object"),
            )
        })?;
        let Value::Object(map) = value else {
            return Err(invalid_request_error(
                "invalid body: expected a JSON object",
            ));
        };
        let request = RequestFields(map);
        if let Some(unknown) = request
            .0
            .keys()
            .find(|key| !REQUEST_FIELDS.contains(&key.as_str()))
        {
            let unknown: String = unknown.chars().take(MAX_NAME_BYTES).collect();
            return Err(invalid_request_error(format!(
                "unknown field `{unknown}`; available fields: {}",
                REQUEST_FIELDS.join(", ")
            )));
        }
        let content = request
            .optional_text("content")?
            .filter(|content| !content.trim().is_empty());
        let content = content.ok_or_else(|| {
            invalid_request_error("missing `content`: pass the text of the message")
        })?;
        let chat_id = request.optional_name("chat_id")?.unwrap_or("default");
        let session_id = request.session_id(chat_id, options.role)?;
        let sender = Sender {
            role: options.role,
            channel: CHANNEL_NAME.to_owned(),
            chat_id: chat_id.to_owned(),
            id: request
                .optional_name("sender_id")?
                .unwrap_or_default()
                .to_owned(),
            name: request
                .optional_name("sender_name")?
                .unwrap_or_default()
                .to_owned(),
        };
        let reply = request.reply_mode()?;
        let callback_url = request.callback_url(reply, options)?;
        let receipt = Arc::new(InboundReceipt::new(request.idempotency_key(headers)?));
        let mut message = ChannelMessage::new(&session_id, CHANNEL_NAME, content)
            .chat_id(chat_id)
            .active();
        if command_line(content).is_some() {
            message = message.kind(MessageKind::Command);
        }
        for (key, value) in request.context_fields()? {
            message = message.context(key.as_str(), value.clone());
        }
        for (key, text) in [("sender_id", &sender.id), ("sender_name", &sender.name)] {
            if !text.is_empty() {
                message = message.context(key, text.as_str());
            }
        }
        for item in request.media_items()? {
            message = message.media(item);
        }
        let mut message = Envelope::from(message);
        let is_claimed = matches!(reply, ReplyMode::Sync | ReplyMode::Stream)
            && receipt.idempotency_key().is_some();
        if let Some(route) = callback_url
            .as_deref()
            .or(is_claimed.then_some(fields::CLAIM_ROUTE))
        {
            message.set(fields::REPLY_ROUTE_FIELD, route);
        }
        if reply == ReplyMode::Stream {
            message.set(STREAM_OUTPUT_FIELD, true);
        }
        let mut hasher = DefaultHasher::new();
        (content, &session_id).hash(&mut hasher);
        Ok(Self {
            reply,
            callback_url,
            fingerprint: hasher.finish(),
            inbound: Inbound::new(message)
                .with_sender(sender)
                .with_untrusted(UntrustedSource::Webhook)
                .with_receipt(Arc::clone(&receipt)),
            receipt,
        })
    }
}

/// Parses the message in a body, with its sender. For fuzzing.
#[doc(hidden)]
pub fn parse_body(body: &[u8], options: &WebhookOptions) -> Option<Inbound> {
    Submission::parse(body, &HeaderMap::new(), options)
        .ok()
        .map(|submission| submission.inbound)
}

/// Fields of the request body.
struct RequestFields(Map<String, Value>);

impl RequestFields {
    fn optional_text(&self, name: &str) -> Result<Option<&str>, HttpError> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(invalid_request_error(format!(
                "invalid `{name}`: expected a string"
            ))),
        }
    }

    /// Returns the text of an optional id or name. It must be one short line, because it becomes part of file names and
    /// logs.
    fn optional_name(&self, name: &str) -> Result<Option<&str>, HttpError> {
        let text = self
            .optional_text(name)?
            .map(str::trim)
            .filter(|text| !text.is_empty());
        match text {
            Some(text) if text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) => {
                Err(invalid_request_error(format!(
                    "invalid `{name}`: expected one line of at most {MAX_NAME_BYTES} bytes"
                )))
            }
            text => Ok(text),
        }
    }

    /// Returns the session id: the field `session_id`, or the session of the chat. Only the owner can use sessions of
    /// other channels.
    fn session_id(&self, chat_id: &str, role: Role) -> Result<String, HttpError> {
        let Some(session_id) = self.optional_name("session_id")? else {
            return Ok(format!("{CHANNEL_NAME}:{chat_id}"));
        };
        let is_webhook_session = session_id
            .split_once(':')
            .is_some_and(|(channel, _)| channel == CHANNEL_NAME);
        if is_webhook_session || role == Role::Owner {
            return Ok(session_id.to_owned());
        }
        let text = format!(
            "session not allowed: `session_id` must begin with `{CHANNEL_NAME}:` unless `webhook.role` is `owner`"
        );
        Err(HttpError::new(
            StatusCode::FORBIDDEN,
            "session_forbidden",
            text,
        ))
    }

    fn reply_mode(&self) -> Result<ReplyMode, HttpError> {
        match self.optional_text("reply")? {
            None if self.0.contains_key("callback_url") => Ok(ReplyMode::Callback),
            None | Some("sync") => Ok(ReplyMode::Sync),
            Some("stream") => Ok(ReplyMode::Stream),
            Some("callback") => Ok(ReplyMode::Callback),
            Some("none") => Ok(ReplyMode::None),
            Some(_) => Err(invalid_request_error(
                "invalid `reply`: expected `sync`, `stream`, `callback` or `none`",
            )),
        }
    }

    fn callback_url(
        &self,
        reply: ReplyMode,
        options: &WebhookOptions,
    ) -> Result<Option<String>, HttpError> {
        match (self.optional_text("callback_url")?, reply) {
            (Some(url), ReplyMode::Callback) => {
                let checked = callback::check_url(url, &options.callback_hosts);
                checked
                    .map(Some)
                    .map_err(|problem| bad_request_error("callback_refused", problem))
            }
            (None, ReplyMode::Callback) => Err(invalid_request_error(
                "missing `callback_url`: `reply` is `callback`; pass the URL that receives the reply",
            )),
            (Some(_), _) => Err(invalid_request_error(
                "unexpected `callback_url`: omit it, or set `reply` to `callback`",
            )),
            (None, _) => Ok(None),
        }
    }

    fn idempotency_key(&self, headers: &HeaderMap) -> Result<Option<String>, HttpError> {
        let header = headers.get("idempotency-key").map(|value| value.to_str());
        let header = header.transpose().map_err(|_| {
            invalid_request_error("invalid header `Idempotency-Key`: expected ASCII text")
        })?;
        let key = self
            .optional_text("idempotency_key")?
            .or(header)
            .map(str::trim)
            .filter(|key| !key.is_empty());
        match key {
            Some(key) if key.len() > MAX_KEY_BYTES => Err(invalid_request_error(format!(
                "invalid idempotency key: expected at most {MAX_KEY_BYTES} bytes"
            ))),
            key => Ok(key.map(str::to_owned)),
        }
    }

    /// Returns the context fields. Ignores names that begin with `_`, which are reserved for the runtime.
    fn context_fields(&self) -> Result<impl Iterator<Item = (&String, &Value)>, HttpError> {
        let context = match self.0.get("context") {
            None | Some(Value::Null) => None,
            Some(Value::Object(context)) => Some(context),
            Some(_) => {
                return Err(invalid_request_error(
                    "invalid `context`: expected an object",
                ));
            }
        };
        Ok(context
            .into_iter()
            .flatten()
            .filter(|(key, _)| !key.starts_with('_')))
    }

    fn media_items(&self) -> Result<Vec<MediaItem>, HttpError> {
        let items = match self.0.get("media") {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(invalid_request_error("invalid `media`: expected a list")),
        };
        items.iter().map(parse_media_item).collect()
    }
}

fn parse_media_item(value: &Value) -> Result<MediaItem, HttpError> {
    let item = MediaItem::from_value(value)
        .ok_or_else(|| invalid_request_error("invalid `media`: each item must be an object"))?;
    let has_allowed_scheme = |url: &str| {
        ["data:", "https://", "http://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
    };
    if item.url.as_deref().is_some_and(has_allowed_scheme) {
        return Ok(item);
    }
    Err(invalid_request_error(
        "invalid `media`: each item needs a `url` that begins with `data:`, `https:` or `http:`",
    ))
}

fn invalid_request_error(message: impl Into<String>) -> HttpError {
    bad_request_error("invalid_request", message)
}

fn bad_request_error(code: &'static str, message: impl Into<String>) -> HttpError {
    HttpError::new(StatusCode::BAD_REQUEST, code, message)
}
