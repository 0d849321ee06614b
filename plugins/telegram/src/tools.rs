//! The tools `telegram.send`, `telegram.edit` and `telegram.react`.
//!
//! Only owners can use chats other than the one they write in, and the policy asks first.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub::agent::files::{FileAccess, FileUse};
use bub::kernel::{
    ChannelMessage, Envelope, Error, ErrorKind, MediaItem, MediaKind, Outbound, PluginContext,
    Result, Role, ToolContext, ToolSpec, Turn,
    tool::{Arguments, FunctionTool, ToolParameter, parameters_schema, run_blocking},
};
use bub::settings::Redactor;
use serde_json::{Value, json};

use super::{
    Bot, CHANNEL_NAME,
    client::ApiErrorKind,
    html,
    outbound::SENT_ID_FIELD,
    route::{ChatThread, Route},
};

/// How long `telegram.send` waits for the id of the sent message.
const SEND_CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a file that a bot can send.
const MAX_UPLOAD_BYTES: u64 = 50 * 1024 * 1024;

/// Registers the tools.
pub(crate) fn register_tools(context: &PluginContext<'_>, bot: &Arc<Bot>) {
    let chat = || {
        ToolParameter::new::<Option<i64>>(
            "chat_id",
            "Id of another chat; owners only [default: this chat]",
            true,
        )
    };
    let send = tool_spec(
        "telegram.send",
        "Send a message or a file on Telegram immediately, separately from the reply, to this chat or to another. Returns \
         its message_id. Afterwards, the final text is not sent to this chat",
        vec![
            ToolParameter::new::<Option<String>>("text", "Text in Markdown", true),
            ToolParameter::new::<Option<String>>("file", "Path of a file that you can read", true),
            ToolParameter::new::<Option<Vec<String>>>(
                "files",
                "Paths of several files; images and videos become an album",
                true,
            ),
            chat(),
            ToolParameter::new::<Option<i64>>("thread_id", "Topic in the other chat", true),
        ],
    );
    let edit = tool_spec(
        "telegram.edit",
        "Edit the text of a message that you sent on Telegram",
        vec![
            ToolParameter::new::<i64>("message_id", "Message id returned by telegram.send", false),
            ToolParameter::new::<String>("text", "New text in Markdown", false),
            chat(),
        ],
    );
    let react = tool_spec(
        "telegram.react",
        "React to a message on Telegram with an emoji such as 👍 ❤ 🔥 👏 😁 🎉 🤔 👀; an empty text removes the reaction",
        vec![
            ToolParameter::new::<String>(
                "emoji",
                "Emoji that Telegram offers as a reaction",
                false,
            ),
            ToolParameter::new::<Option<i64>>(
                "message_id",
                "Message id [default: the message you answer]",
                true,
            ),
            chat(),
        ],
    );
    let clone_bot = || Arc::clone(bot);
    let shared_bot = clone_bot();
    let files = Arc::new(FileAccess::new(context.settings));
    context.add_tool(FunctionTool::new(send, move |arguments, context| {
        let (bot, files) = (Arc::clone(&shared_bot), Arc::clone(&files));
        Box::pin(run_send(bot, files, arguments, context))
    }));
    let shared_bot = clone_bot();
    context.add_tool(FunctionTool::new(edit, move |arguments, context| {
        Box::pin(run_edit(Arc::clone(&shared_bot), arguments, context))
    }));
    let shared_bot = clone_bot();
    context.add_tool(FunctionTool::new(react, move |arguments, context| {
        Box::pin(run_react(Arc::clone(&shared_bot), arguments, context))
    }));
}

fn tool_spec(name: &str, description: &str, parameters: Vec<ToolParameter>) -> ToolSpec {
    ToolSpec::new(name, description, parameters_schema(parameters))
}

async fn run_send(
    bot: Arc<Bot>,
    files: Arc<FileAccess>,
    mut arguments: Arguments,
    context: ToolContext,
) -> Result<Value> {
    let text = arguments.take::<Option<String>>("text", None);
    let file = arguments.take::<Option<String>>("file", None);
    let files_given = arguments.take::<Option<Vec<String>>>("files", None);
    let chat = arguments.take::<Option<i64>>("chat_id", None);
    let thread = arguments.take::<Option<i64>>("thread_id", None);
    let (Some(text), Some(file), Some(files_given), Some(chat), Some(thread), true) =
        (text, file, files_given, chat, thread, arguments.is_valid())
    else {
        return Err(arguments.into_error());
    };
    let (chat, is_turn_chat) = resolve_chat(&context.turn, chat)?;
    let text = bot
        .options
        .redactor
        .redact(&text.unwrap_or_default())
        .into_owned();
    let mut paths = Vec::new();
    for file in file.into_iter().chain(files_given.unwrap_or_default()) {
        let (files, redactor) = (Arc::clone(&files), bot.options.redactor.clone());
        paths.push(resolve_file(files, context.clone(), file, redactor).await?);
    }
    if text.trim().is_empty() && paths.is_empty() {
        return Err(Error::invalid_input(
            "nothing to send: pass `text`, `file` or `files`",
        ));
    }
    let chat_thread = ChatThread { chat, thread };
    let session = if is_turn_chat {
        context.turn.session_id().as_str().to_owned()
    } else {
        bot.session_id(chat_thread)
    };
    let mut message: Envelope = ChannelMessage::new(session, CHANNEL_NAME, text)
        .chat_id(chat.to_string())
        .into();
    if !is_turn_chat || thread.is_some() {
        Route::new(chat_thread).write_to(&mut message);
    }
    if !paths.is_empty() {
        message.set_media(paths.iter().map(|path| media_item(path)).collect());
    }
    let (sent_id, delivered) = bot.sent_waiters.register();
    message.set(SENT_ID_FIELD, sent_id.as_str());
    let reply = Outbound::from_tool(message);
    if !context.turn.deliver(reply.clone()).await? {
        // No gateway runs the channel here, so the bot sends it itself.
        super::outbound::deliver_reply(&bot, &reply).await?;
    }
    let outcome = tokio::time::timeout(SEND_CONFIRM_TIMEOUT, delivered).await;
    bot.sent_waiters.remove(&sent_id);
    match outcome {
        Ok(Ok(Ok(message_id))) => Ok(json!({"ok": true, "message_id": message_id})),
        Ok(Ok(Err(error))) => {
            context
                .turn
                .unmark_sent_by_tool(CHANNEL_NAME, &chat.to_string());
            Err(tool_error(error))
        }
        _ => Ok(
            json!({"ok": true, "note": "the message is queued and will be sent as soon as Telegram accepts it"}),
        ),
    }
}

async fn run_edit(bot: Arc<Bot>, mut arguments: Arguments, context: ToolContext) -> Result<Value> {
    let message_id = arguments.take::<i64>("message_id", None);
    let text = arguments.take::<String>("text", None);
    let chat = arguments.take::<Option<i64>>("chat_id", None);
    let (Some(message_id), Some(text), Some(chat), true) =
        (message_id, text, chat, arguments.is_valid())
    else {
        return Err(arguments.into_error());
    };
    let (chat, _) = resolve_chat(&context.turn, chat)?;
    let parts = html::render(&bot.options.redactor.redact(&text));
    let [part] = parts.as_slice() else {
        return Err(Error::invalid_input(
            "invalid `text`: it must have 1 to 4096 characters to fit into one message",
        ));
    };
    bot.limiter.wait_to_send(chat).await;
    let base = json!({"chat_id": chat, "message_id": message_id});
    match bot.send_with_markup("editMessageText", &base, part).await {
        Ok(_) => Ok(json!({"ok": true})),
        Err(api_error) if api_error.error_kind == ApiErrorKind::NotModified => {
            Ok(json!({"ok": true}))
        }
        // The message is a file: its text is the caption.
        Err(api_error)
            if api_error.error_kind == ApiErrorKind::Rejected
                && api_error.text.contains("no text in the message") =>
        {
            let params = json!({
                "chat_id": chat, "message_id": message_id, "caption": part.html, "parse_mode": "HTML",
            });
            let edited = bot.client.call("editMessageCaption", &params).await;
            edited.map_err(|api_error| tool_error(api_error.into()))?;
            Ok(json!({"ok": true}))
        }
        Err(api_error) => Err(tool_error(api_error.into())),
    }
}

async fn run_react(bot: Arc<Bot>, mut arguments: Arguments, context: ToolContext) -> Result<Value> {
    let emoji = arguments.take::<String>("emoji", None);
    let message_id = arguments.take::<Option<i64>>("message_id", None);
    let chat = arguments.take::<Option<i64>>("chat_id", None);
    let (Some(emoji), Some(message_id), Some(chat), true) =
        (emoji, message_id, chat, arguments.is_valid())
    else {
        return Err(arguments.into_error());
    };
    let (chat, is_turn_chat) = resolve_chat(&context.turn, chat)?;
    let answered_message = || {
        let route = Route::from_message(context.turn.message()).ok();
        route.filter(|_| is_turn_chat)?.message_id
    };
    let message_id = message_id.or_else(answered_message).ok_or_else(|| {
        Error::invalid_input("missing `message_id`: the turn answers no message of this chat; pass the id of a message")
    })?;
    let reaction = match emoji.trim() {
        "" => json!([]),
        emoji => json!([{"type": "emoji", "emoji": emoji}]),
    };
    let params = json!({"chat_id": chat, "message_id": message_id, "reaction": reaction});
    match bot.client.call("setMessageReaction", &params).await {
        Ok(_) => Ok(json!({"ok": true})),
        Err(api_error) => Err(tool_error(api_error.into())),
    }
}

/// Returns the target chat and whether it is the chat of the turn.
fn resolve_chat(turn: &Turn, chat: Option<i64>) -> Result<(i64, bool)> {
    let sender = turn.sender();
    let turn_chat = (sender.channel == CHANNEL_NAME)
        .then(|| sender.chat_id.parse::<i64>().ok())
        .flatten();
    match chat.or(turn_chat) {
        None => Err(Error::invalid_input(
            "missing `chat_id`: this conversation is not on Telegram; pass the id of a Telegram chat",
        )),
        Some(chat) if Some(chat) == turn_chat => Ok((chat, true)),
        Some(chat) if sender.role == Role::Owner => Ok((chat, false)),
        Some(_) => Err(Error::new(
            ErrorKind::Tool,
            "permission denied: only owners can use other chats; omit `chat_id` to use this chat",
        )),
    }
}

/// Returns the path of a file to send, if the sender may read it. The path has no symbolic links.
async fn resolve_file(
    files: Arc<FileAccess>,
    context: ToolContext,
    file: String,
    redactor: Redactor,
) -> Result<PathBuf> {
    run_blocking(move || {
        let file_error =
            |reason: &str| Error::new(ErrorKind::Tool, format!("cannot send `{file}`: {reason}"));
        let found = files.find(&context, &file, FileUse::Read);
        let found = found.map_err(|error| file_error(error.message()))?;
        let opened = found.open().map_err(|error| file_error(error.message()))?;
        let bytes = read_file(opened, &redactor).map_err(|error| file_error(&error.to_string()))?;
        if bytes.is_empty() {
            return Err(file_error("it is empty; Telegram accepts no empty files"));
        }
        Ok(found.path().to_owned())
    })
    .await?
}

/// Reads a file to send. Fails if it is too large, or if it contains a secret that bub knows.
pub(super) fn read_file(file: File, redactor: &Redactor) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_UPLOAD_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == MAX_UPLOAD_BYTES {
        return Err(io::Error::other(
            "it is 50 MiB or larger; send a smaller file",
        ));
    }
    if redactor.has_secret(&bytes) {
        return Err(io::Error::other(
            "it contains a secret; remove the secret first",
        ));
    }
    Ok(bytes)
}

/// Returns a media item that refers to the file by path, so that the journal stays small.
fn media_item(path: &Path) -> MediaItem {
    let extension = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    let (kind, mime) = match extension.as_str() {
        "png" => (MediaKind::Image, "image/png"),
        "jpg" | "jpeg" => (MediaKind::Image, "image/jpeg"),
        "webp" => (MediaKind::Image, "image/webp"),
        "gif" => (MediaKind::Image, "image/gif"),
        "mp3" => (MediaKind::Audio, "audio/mpeg"),
        "m4a" => (MediaKind::Audio, "audio/mp4"),
        "ogg" | "oga" | "opus" => (MediaKind::Audio, "audio/ogg"),
        "mp4" => (MediaKind::Video, "video/mp4"),
        "pdf" => (MediaKind::Document, "application/pdf"),
        _ => (MediaKind::Document, "application/octet-stream"),
    };
    MediaItem::from_url(kind, mime, format!("file://{}", path.display()))
}

fn tool_error(error: Error) -> Error {
    error.with_kind(ErrorKind::Tool)
}
