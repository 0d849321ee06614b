//! The conversation on a tape: messages, tool calls and their results, commands, anchors and errors. Other events and the
//! system prompt are omitted. `bub tape show`, `bub tape export` and `,export` show it.

use bub_tape::{Entry, EntryKind, SESSION_START, codec};
use serde_json::{Map, Value};

/// Start of the last line with the context of a message, which bub adds before the text of the user.
const DATE_LINE: &str = "---Date: ";
/// Maximum characters of a date that cannot be parsed.
const MAX_DATE_CHARS: usize = 19;

/// A part of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationPart {
    /// The kind of the part.
    pub kind: PartKind,
    /// The headline, in one line.
    pub title: String,
    /// The text.
    pub body: String,
    /// The date in UTC.
    pub date: String,
}

/// The kind of a part of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// Text of the user, or a notice of bub.
    User,
    /// Text of the model.
    Assistant,
    /// Tool calls and commands.
    Call,
    /// What a tool or a command returned.
    Output,
    /// A place where the context of the model starts again.
    Anchor,
    /// An error.
    Error,
}

impl ConversationPart {
    /// Returns the parts of the conversation that an entry records. Text of the model before a tool call is a separate
    /// part.
    pub fn from_entry(entry: &Entry) -> Vec<Self> {
        let content = || entry_text(entry);
        let part = match &entry.kind {
            EntryKind::Message => message_part(entry),
            EntryKind::ToolCall => {
                Some((PartKind::Call, "tool call".to_owned(), calls_text(entry)))
            }
            EntryKind::ToolResult => {
                let text = format_list(entry.payload.get("results"), format_result);
                Some((PartKind::Output, "tool result".to_owned(), text))
            }
            EntryKind::Anchor => anchor_part(entry),
            EntryKind::Error => {
                let label = entry_label(entry);
                Some((PartKind::Error, format!("error {label}"), content()))
            }
            EntryKind::Event => event_part(entry),
            EntryKind::System | EntryKind::Other(_) => None,
        };
        let parts = said_before_calls(entry).into_iter().chain(part);
        let parts = parts.map(|(kind, title, body)| Self {
            kind,
            title: title.split_whitespace().collect::<Vec<_>>().join(" "),
            body: body.trim_end().to_owned(),
            date: entry_date(entry),
        });
        parts.collect()
    }

    /// Formats the part as a section of a Markdown document: messages as written, other text in a code fence.
    pub fn format_markdown(&self) -> String {
        let is_anchor = self.kind == PartKind::Anchor;
        let level = if is_anchor { "##" } else { "###" };
        let section = format!("{level} {} ({})\n\n", capitalize(&self.title), self.date);
        let body = &self.body;
        if body.is_empty() {
            return section;
        }
        if matches!(
            self.kind,
            PartKind::User | PartKind::Assistant | PartKind::Anchor
        ) {
            return format!("{section}{body}\n\n");
        }
        let fence = code_fence(body);
        format!("{section}{fence}text\n{body}\n{fence}\n\n")
    }
}

fn message_part(entry: &Entry) -> Option<(PartKind, String, String)> {
    let text = entry_text(entry);
    match entry_label(entry) {
        "user" => {
            let (context, message) = split_context(&text);
            let sender = context_value(context, "sender_id").filter(|sender| *sender != "human");
            let channel =
                context_value(context, "channel").map(|name| name.trim_start_matches('$'));
            let mut title = "user".to_owned();
            title.extend(sender.map(|sender| format!(" {sender}")));
            let is_remote = |channel: &&str| *channel != "cli";
            title.extend(channel.filter(is_remote).map(|name| format!(" ({name})")));
            Some((PartKind::User, title, message.to_owned()))
        }
        "system" => None,
        role => Some((PartKind::Assistant, role.to_owned(), text)),
    }
}

/// Splits a prompt into the context that bub adds and the text of the user.
pub(crate) fn split_context(prompt: &str) -> (&str, &str) {
    let starts = prompt.strip_prefix(DATE_LINE).map(|_| 0);
    let inside = || prompt.find(&format!("\n{DATE_LINE}")).map(|at| at + 1);
    let split = starts.or_else(inside).and_then(|at| {
        let (context, rest) = prompt.split_at_checked(at)?;
        Some((context, rest.split_once("---\n")?.1))
    });
    split.unwrap_or(("", prompt))
}

/// Returns a value in a context such as `sender_id=ada|channel=$telegram`.
fn context_value<'a>(context: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = context.trim().split(['|', '\n']);
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn anchor_part(entry: &Entry) -> Option<(PartKind, String, String)> {
    let name = entry_label(entry);
    if name == SESSION_START {
        return None;
    }
    let state = entry.payload.get("state").and_then(Value::as_object);
    let summary = state.and_then(|state| state.get("summary")?.as_str());
    let body = summary.map_or_else(|| entry_text(entry), str::to_owned);
    Some((PartKind::Anchor, format!("anchor {name}"), body))
}

fn event_part(entry: &Entry) -> Option<(PartKind, String, String)> {
    let data = entry.payload.get("data").and_then(Value::as_object)?;
    let field = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
    match entry_label(entry) {
        "command" => {
            let title = format!("command ,{}", field("raw"));
            Some((PartKind::Output, title, field("output").to_owned()))
        }
        "no_model" => Some((PartKind::User, "bub".to_owned(), field("text").to_owned())),
        _ => None,
    }
}

/// Returns the text that the model wrote before the calls of an entry.
fn said_before_calls(entry: &Entry) -> Option<(PartKind, String, String)> {
    let content = (entry.kind == EntryKind::ToolCall).then(|| entry.payload.get("content"));
    let text = format_content(content.flatten()?);
    let is_empty = text.trim().is_empty();
    (!is_empty).then(|| (PartKind::Assistant, "assistant".to_owned(), text))
}

/// Returns one line per call.
fn calls_text(entry: &Entry) -> String {
    format_list(entry.payload.get("calls"), call_line)
}

/// Formats a tool result. Of an error, only the message is shown.
fn format_result(result: &Value) -> String {
    let message = text_field(result, "kind").and_then(|_| text_field(result, "message"));
    message.map_or_else(|| format_content(result), |text| text.trim_end().to_owned())
}

/// Formats a call as a comma command: the tool and its arguments. A single text is shown without quotes.
fn call_line(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(Value::as_str).unwrap_or("?");
    let parsed = match function.get("arguments") {
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        Some(Value::Object(map)) => Some(map.clone()),
        _ => None,
    };
    let arguments: Map<String, Value> = parsed.unwrap_or_default();
    let mut values = arguments.iter();
    if let (Some((_, Value::String(text))), None) = (values.next(), values.next()) {
        return format!("{name} {text}");
    }
    let arguments = arguments
        .iter()
        .map(|(name, value)| format!(" {name}={value}"));
    name.to_owned() + &arguments.collect::<String>()
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}

/// Returns a fence that is longer than any sequence of backticks in the body, so that the body cannot close it.
fn code_fence(body: &str) -> String {
    let backticks = body.split(|character| character != '`').map(str::len);
    "`".repeat(backticks.max().map_or(3, |longest| 3.max(longest + 1)))
}

/// Formats the date of an entry in UTC.
pub fn entry_date(entry: &Entry) -> String {
    match entry.timestamp() {
        Some(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => entry.date.chars().take(MAX_DATE_CHARS).collect(),
    }
}

/// Returns the label that is shown beside the kind of an entry: a role, a name, or an error kind. For other kinds it is
/// empty.
pub fn entry_label(entry: &Entry) -> &str {
    let key = match &entry.kind {
        EntryKind::Message => "role",
        EntryKind::Anchor | EntryKind::Event => "name",
        EntryKind::Error => "kind",
        EntryKind::System | EntryKind::ToolCall | EntryKind::ToolResult | EntryKind::Other(_) => {
            return "";
        }
    };
    let label = entry.payload.get(key).and_then(Value::as_str);
    label.unwrap_or_default()
}

/// Returns the content of an entry without a final newline. It is empty if the entry has only a label.
pub fn entry_text(entry: &Entry) -> String {
    let field = |key: &str, format: fn(&Value) -> String| {
        let value = entry.payload.get(key);
        value.map(format).unwrap_or_default()
    };
    let list = |key: &str, format| format_list(entry.payload.get(key), format);
    match &entry.kind {
        EntryKind::Message => join_lines([
            field("content", format_content),
            format_list(entry.meta.get("media"), format_media_item),
            list("tool_calls", format_tool_call),
        ]),
        EntryKind::System => field("content", format_content),
        EntryKind::Anchor => field("state", format_value),
        EntryKind::Event => field("data", format_value),
        EntryKind::ToolCall => join_lines([
            field("content", format_content),
            list("calls", format_tool_call),
        ]),
        EntryKind::ToolResult => list("results", format_content),
        EntryKind::Error => join_lines([
            field("message", format_content),
            field("details", format_value),
        ]),
        EntryKind::Other(_) => codec::to_python_json(&entry.payload),
    }
}

fn format_list(items: Option<&Value>, format: fn(&Value) -> String) -> String {
    let items = items.and_then(Value::as_array);
    join_lines(items.into_iter().flatten().map(format))
}

/// Formats the content of an entry: text without trailing whitespace, a list with one item per line, other values as
/// JSON.
fn format_content(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim_end().to_owned(),
        Value::Array(parts) => join_lines(parts.iter().map(format_part)),
        other => format_value(other),
    }
}

fn format_part(value: &Value) -> String {
    match text_field(value, "text").or(value.as_str()) {
        Some(text) => text.trim_end().to_owned(),
        // Older versions stored media inline; show only the type instead of the bytes.
        None => format!("[{}]", text_field(value, "type").unwrap_or("part")),
    }
}

fn format_media_item(item: &Value) -> String {
    let text = |key: &str| text_field(item, key).unwrap_or("?");
    format!("[{} {}]", text("type"), text("blob"))
}

fn text_field<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn format_tool_call(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = text_field(function, "name").unwrap_or("?");
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => format_value(value),
        None => String::new(),
    };
    format!("{name} {arguments}").trim_end().to_owned()
}

/// Formats a JSON value. `null` and `{}` become an empty string.
fn format_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        other => codec::to_python_json(other),
    }
}

fn join_lines(parts: impl IntoIterator<Item = String>) -> String {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DATE: &str = "2026-01-02T03:04:05Z";

    #[test]
    fn a_fence_is_longer_than_what_it_holds() {
        assert_eq!(code_fence("no"), "```");
        assert_eq!(code_fence("a ```` b"), "`````");
    }

    #[test]
    fn an_entry_is_a_section() {
        let markdown = |entry: Entry| {
            let parts = ConversationPart::from_entry(&entry.with_date(DATE));
            let parts = parts.iter().map(ConversationPart::format_markdown);
            parts.collect::<String>()
        };
        let prompt = "sender_id=ada|channel=$telegram|chat_id=7\n---Date: 2026-01-02T03:04:05+00:00---\nhi *there*";
        assert_eq!(
            markdown(Entry::message("user", prompt)),
            "### User ada (telegram) (2026-01-02 03:04:05)\n\nhi *there*\n\n"
        );
        assert_eq!(
            markdown(Entry::tool_result(vec!["ok".into()])),
            "### Tool result (2026-01-02 03:04:05)\n\n```text\nok\n```\n\n"
        );
        assert_eq!(markdown(Entry::event("run", Some(json!({})))), "");
    }

    #[test]
    fn text_before_a_call_is_text_of_the_model() {
        let call = json!({"function": {"name": "bash", "arguments": "{\"command\": \"ls\"}"}});
        let mut entry = Entry::tool_call(vec![call]);
        entry
            .payload
            .insert("content".to_owned(), "I *look*.".into());
        let parts = ConversationPart::from_entry(&entry);
        let parts: Vec<_> = parts
            .iter()
            .map(|part| (part.kind, part.body.as_str()))
            .collect();
        let expected = [
            (PartKind::Assistant, "I *look*."),
            (PartKind::Call, "bash ls"),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn a_failed_result_is_shown_as_its_message() {
        let failure = json!({"kind": "tool", "message": "exit 1\nno such file"});
        let parts =
            ConversationPart::from_entry(&Entry::tool_result(vec![failure, json!({"a": 1})]));
        let body = parts.first().map(|part| part.body.as_str());
        assert_eq!(body, Some("exit 1\nno such file\n{\"a\": 1}"));
    }

    #[test]
    fn a_call_is_shown_as_a_command() {
        let call = |arguments: &str| {
            call_line(&json!({"function": {"name": "fs_read", "arguments": arguments}}))
        };
        assert_eq!(call("{\"path\": \"a b\"}"), "fs_read a b");
        assert_eq!(
            call("{\"path\": \"a\", \"offset\": 3}"),
            "fs_read path=\"a\" offset=3"
        );
        assert_eq!(call("not json"), "fs_read");
    }

    #[test]
    fn only_the_context_that_bub_adds_is_removed() {
        for (prompt, text) in [
            ("hi", "hi"),
            ("---Date: x---\nhi", "hi"),
            ("a=1|b=2\n---Date: x---\nhi\n---\nthere", "hi\n---\nthere"),
            ("look:\n---\nthere", "look:\n---\nthere"),
        ] {
            assert_eq!(split_context(prompt).1, text);
        }
    }
}
