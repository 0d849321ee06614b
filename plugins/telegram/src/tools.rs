//! What the model can do on the platform beside answering: `telegram.send`, `telegram.edit`, `telegram.react`.
//!
//! Whoever is no owner reaches only the chat they write in.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub::kernel::{
    ChannelMessage, Envelope, Error, ErrorKind, MediaItem, MediaKind, Outbound, PluginContext,
    Result, Role, ToolContext, ToolSpec, Turn,
    tool::{Arguments, FunctionTool, ToolParameter, schema},
};
use serde_json::{Value, json};

use super::{
    Bot, CHANNEL_NAME,
    client::ApiErrorKind,
    html,
    outbound::SENT_ID_FIELD,
    route::{ChatThread, Route},
};

/// So long the number of a sent message is waited for.
const SEND_CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);
/// The platform takes no bigger files of a bot.
const MAX_UPLOAD_BYTES: u64 = 50 * 1024 * 1024;

/// Adds the tools.
pub(crate) fn register(context: &PluginContext<'_>, bot: &Arc<Bot>) {
    let chat = || {
        ToolParameter::new::<Option<i64>>(
            "chat_id",
            "Another chat than this one; for owners only.",
            true,
        )
    };
    let send = spec(
        "telegram.send",
        "Send a message or a file on Telegram, now, beside the reply: to this chat, or to another. Returns its message_id. \
         After it, the final text is not sent to this chat.",
        vec![
            ToolParameter::new::<Option<String>>("text", "The text, in Markdown.", true),
            ToolParameter::new::<Option<String>>(
                "file",
                "The path of a file to send, in the workspace.",
                true,
            ),
            chat(),
            ToolParameter::new::<Option<i64>>("thread_id", "The topic in that other chat.", true),
        ],
    );
    let edit = spec(
        "telegram.edit",
        "Change the text of a message that you sent on Telegram.",
        vec![
            ToolParameter::new::<i64>(
                "message_id",
                "The message, as telegram.send returned it.",
                false,
            ),
            ToolParameter::new::<String>("text", "The new text, in Markdown.", false),
            chat(),
        ],
    );
    let react = spec(
        "telegram.react",
        "React to a message on Telegram with an emoji such as 👍 ❤ 🔥 👏 😁 🎉 🤔 👀; an empty text takes the reaction back.",
        vec![
            ToolParameter::new::<String>(
                "emoji",
                "One emoji that the platform offers as a reaction.",
                false,
            ),
            ToolParameter::new::<Option<i64>>(
                "message_id",
                "The message; without it the one you answer.",
                true,
            ),
            chat(),
        ],
    );
    let of = |bot: &Arc<Bot>| Arc::clone(bot);
    let own = of(bot);
    context.add_tool(FunctionTool::new(send, move |arguments, context| {
        Box::pin(run_send(Arc::clone(&own), arguments, context))
    }));
    let own = of(bot);
    context.add_tool(FunctionTool::new(edit, move |arguments, context| {
        Box::pin(run_edit(Arc::clone(&own), arguments, context))
    }));
    let own = of(bot);
    context.add_tool(FunctionTool::new(react, move |arguments, context| {
        Box::pin(run_react(Arc::clone(&own), arguments, context))
    }));
}

fn spec(name: &str, description: &str, parameters: Vec<ToolParameter>) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: schema(parameters),
        agent_use: true,
        read_only: false,
    }
}

async fn run_send(bot: Arc<Bot>, mut arguments: Arguments, context: ToolContext) -> Result<Value> {
    let text = arguments.take::<Option<String>>("text", None);
    let file = arguments.take::<Option<String>>("file", None);
    let chat = arguments.take::<Option<i64>>("chat_id", None);
    let thread = arguments.take::<Option<i64>>("thread_id", None);
    let (Some(text), Some(file), Some(chat), Some(thread), true) =
        (text, file, chat, thread, arguments.is_valid())
    else {
        return Err(arguments.error());
    };
    let (chat, is_own) = target(&context.turn, chat)?;
    let text = bot
        .options
        .redactor
        .redact(&text.unwrap_or_default())
        .into_owned();
    let file = file
        .map(|file| readable(&context.turn, &file))
        .transpose()?;
    if text.trim().is_empty() && file.is_none() {
        return Err(Error::invalid_input(
            "there is nothing to send: give `text` or `file`",
        ));
    }
    let place = ChatThread { chat, thread };
    let session = if is_own {
        context.turn.session_id().as_str().to_owned()
    } else {
        place.session()
    };
    let mut message: Envelope = ChannelMessage::new(session, CHANNEL_NAME, text)
        .chat_id(chat.to_string())
        .into();
    if !is_own || thread.is_some() {
        Route::new(place).put_on(&mut message);
    }
    if let Some(path) = &file {
        message.set_media(vec![item(path)]);
    }
    let (note, delivered) = bot.notes.open();
    message.set(SENT_ID_FIELD, note.as_str());
    let reply = Outbound::from_tool(message);
    if !context.turn.deliver(reply.clone()).await? {
        // No gateway runs the channel here, so the bot sends it itself.
        super::outbound::deliver(&bot, &reply).await?;
    }
    let waiting = tokio::time::timeout(SEND_CONFIRM_TIMEOUT, delivered).await;
    bot.notes.close(&note);
    match waiting {
        Ok(Ok(Ok(message_id))) => Ok(json!({"ok": true, "message_id": message_id})),
        Ok(Ok(Err(error))) => {
            context
                .turn
                .unmark_sent_by_tool(CHANNEL_NAME, &chat.to_string());
            Err(tool_error(error))
        }
        _ => Ok(
            json!({"ok": true, "note": "it is on its way, and will be sent as soon as the platform takes it"}),
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
        return Err(arguments.error());
    };
    let (chat, _) = target(&context.turn, chat)?;
    let parts = html::render(&bot.options.redactor.redact(&text));
    let [part] = parts.as_slice() else {
        return Err(Error::invalid_input(
            "the text must fit into one message: at most 4096 characters, and not empty",
        ));
    };
    bot.limiter.wait(chat).await;
    let base = json!({"chat_id": chat, "message_id": message_id});
    match bot.with_markup("editMessageText", &base, part).await {
        Ok(_) => Ok(json!({"ok": true})),
        Err(failure) if failure.error_kind == ApiErrorKind::NotModified => Ok(json!({"ok": true})),
        Err(failure) => Err(tool_error(failure.into())),
    }
}

async fn run_react(bot: Arc<Bot>, mut arguments: Arguments, context: ToolContext) -> Result<Value> {
    let emoji = arguments.take::<String>("emoji", None);
    let message_id = arguments.take::<Option<i64>>("message_id", None);
    let chat = arguments.take::<Option<i64>>("chat_id", None);
    let (Some(emoji), Some(message_id), Some(chat), true) =
        (emoji, message_id, chat, arguments.is_valid())
    else {
        return Err(arguments.error());
    };
    let (chat, is_own) = target(&context.turn, chat)?;
    let answered = || {
        let route = Route::from_message(context.turn.message()).ok();
        route.filter(|_| is_own)?.message_id
    };
    let message_id = message_id
        .or_else(answered)
        .ok_or_else(|| Error::invalid_input("which message? give `message_id`"))?;
    let reaction = match emoji.trim() {
        "" => json!([]),
        emoji => json!([{"type": "emoji", "emoji": emoji}]),
    };
    let params = json!({"chat_id": chat, "message_id": message_id, "reaction": reaction});
    match bot.client.call("setMessageReaction", &params).await {
        Ok(_) => Ok(json!({"ok": true})),
        Err(failure) => Err(tool_error(failure.into())),
    }
}

/// The chat that is meant, and whether it is the one of the turn.
fn target(turn: &Turn, chat: Option<i64>) -> Result<(i64, bool)> {
    let sender = turn.sender();
    let own = (sender.channel == CHANNEL_NAME)
        .then(|| sender.chat_id.parse::<i64>().ok())
        .flatten();
    match chat.or(own) {
        None => Err(Error::invalid_input(
            "which chat? give `chat_id`: this conversation is not on Telegram",
        )),
        Some(chat) if Some(chat) == own => Ok((chat, true)),
        Some(chat) if sender.role == Role::Owner => Ok((chat, false)),
        Some(_) => Err(Error::new(
            ErrorKind::Tool,
            "only an owner may reach other chats than this one",
        )),
    }
}

/// A file that may be sent: for whoever is no owner, one in the workspace.
fn readable(turn: &Turn, file: &str) -> Result<PathBuf> {
    let workspace = turn.state().get_str("_runtime_workspace");
    let workspace = PathBuf::from(workspace.unwrap_or_default());
    let wrong = |error_kind: String| {
        Error::new(
            ErrorKind::Tool,
            format!("cannot send `{file}`: {error_kind}"),
        )
    };
    let path = workspace
        .join(file)
        .canonicalize()
        .map_err(|error| wrong(error.to_string()))?;
    let is_inside = workspace
        .canonicalize()
        .is_ok_and(|workspace| path.starts_with(workspace));
    if !is_inside && turn.sender().role != Role::Owner {
        return Err(wrong("it is not in the workspace".to_owned()));
    }
    let about = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    match (about.is_file(), about.len()) {
        (false, _) => Err(wrong("it is no file".to_owned())),
        (_, 0) => Err(wrong("it is empty".to_owned())),
        (_, MAX_UPLOAD_BYTES..) => Err(wrong("it is bigger than 50 MB".to_owned())),
        _ => Ok(path),
    }
}

/// A file as part of a message. Only its place is written down, so that the journal stays small.
fn item(path: &Path) -> MediaItem {
    let ending = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    let (kind, mime) = match ending.as_str() {
        "png" => (MediaKind::Image, "image/png"),
        "jpg" | "jpeg" => (MediaKind::Image, "image/jpeg"),
        "webp" => (MediaKind::Image, "image/webp"),
        _ => (MediaKind::Document, "application/octet-stream"),
    };
    MediaItem::from_url(kind, mime, format!("file://{}", path.display()))
}

fn tool_error(error: Error) -> Error {
    error.with_kind(ErrorKind::Tool)
}
