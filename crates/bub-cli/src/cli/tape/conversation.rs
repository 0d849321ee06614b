//! The conversation on a tape: messages, tool calls and their results, commands, anchors and errors. Other events and the
//! system prompt are omitted.

use std::fmt::Write as _;

use bub_tape::{Entry, EntryKind};
use serde_json::{Map, Value};

use super::text::{self, ColorSupport};
use crate::cli::listing::wrap_text;

/// Maximum lines of a tool result or of the output of a command on a terminal.
const MAX_OUTPUT_LINES: usize = 12;
/// Columns before the text of a part.
const INDENT: usize = 2;
/// Anchor at the start of every session.
const FIRST_ANCHOR: &str = "session/start";
/// Start of the last line with the context of a message, which bub adds before the text of the user.
const DATE_LINE: &str = "---Date: ";

/// A part of the conversation.
pub(super) struct ConversationPart {
    kind: PartKind,
    title: String,
    body: String,
    date: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PartKind {
    /// Text of the user, or a notice of bub.
    User,
    /// Text of the model.
    Assistant,
    /// Tool calls and commands.
    Call,
    /// What a tool or a command returned.
    Output,
    Anchor,
    Error,
}

impl ConversationPart {
    /// Returns the part of the conversation that an entry records, if any.
    pub(super) fn from_entry(entry: &Entry) -> Option<Self> {
        let content = || text::entry_text(entry);
        let (kind, title, body) = match &entry.kind {
            EntryKind::Message => message_part(entry)?,
            EntryKind::ToolCall => (PartKind::Call, "tool call".to_owned(), calls_text(entry)),
            EntryKind::ToolResult => (PartKind::Output, "tool result".to_owned(), content()),
            EntryKind::Anchor => anchor_part(entry)?,
            EntryKind::Error => {
                let label = text::entry_label(entry);
                (PartKind::Error, format!("error {label}"), content())
            }
            EntryKind::Event => event_part(entry)?,
            EntryKind::System | EntryKind::Other(_) => return None,
        };
        Some(Self {
            kind,
            title: text::sanitize_line(&title),
            body: text::sanitize(body.trim_end()).into_owned(),
            date: text::entry_date(entry),
        })
    }

    /// Formats the part for a terminal of this width: a headline, the indented text, and an empty line. Long output is
    /// truncated.
    pub(super) fn format(&self, style: ColorSupport, width: Option<usize>) -> String {
        let title = match self.kind {
            PartKind::User => style.paint("1;34", &self.title),
            PartKind::Assistant => style.paint("1;32", &self.title),
            PartKind::Call | PartKind::Output => style.paint("36", &self.title),
            PartKind::Anchor => style.paint("1;35", &self.title),
            PartKind::Error => style.paint("1;31", &self.title),
        };
        let mut text = format!("{title}  {}\n", style.paint_dim(&self.date));
        let lines: Vec<&str> = self.body.lines().collect();
        let count = match self.kind {
            PartKind::Output => lines.len().min(MAX_OUTPUT_LINES),
            _ => lines.len(),
        };
        for line in lines.iter().take(count) {
            let wrapped = match self.kind {
                // Output may be a table or code.
                PartKind::Output => vec![format!("  {line}").trim_end().to_owned()],
                _ if line.is_empty() => vec![String::new()],
                _ => wrap_text(line, INDENT, width),
            };
            for line in wrapped {
                text.extend([line.as_str(), "\n"]);
            }
        }
        if count < lines.len() {
            let more = text::format_count(lines.len() - count, "line", "lines");
            let more = style.paint_dim(&format!("… {more} more; see `--raw`"));
            let _ = writeln!(text, "  {more}");
        }
        text.push('\n');
        text
    }

    /// Formats the part as a section of a Markdown document: messages as written, other text in a code fence.
    pub(super) fn format_markdown(&self) -> String {
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
    let text = text::entry_text(entry);
    match text::entry_label(entry) {
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
fn split_context(prompt: &str) -> (&str, &str) {
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
    let name = text::entry_label(entry);
    if name == FIRST_ANCHOR {
        return None;
    }
    let state = entry.payload.get("state").and_then(Value::as_object);
    let summary = state.and_then(|state| state.get("summary")?.as_str());
    let body = summary.map_or_else(|| text::entry_text(entry), str::to_owned);
    Some((PartKind::Anchor, format!("anchor {name}"), body))
}

fn event_part(entry: &Entry) -> Option<(PartKind, String, String)> {
    let data = entry.payload.get("data").and_then(Value::as_object)?;
    let field = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
    match text::entry_label(entry) {
        "command" => {
            let title = format!("command ,{}", field("raw"));
            Some((PartKind::Output, title, field("output").to_owned()))
        }
        "no_model" => Some((PartKind::User, "bub".to_owned(), field("text").to_owned())),
        _ => None,
    }
}

/// Returns the text of the model and one line per call.
fn calls_text(entry: &Entry) -> String {
    let calls = entry.payload.get("calls").and_then(Value::as_array);
    let calls = calls.into_iter().flatten().map(call_line);
    let content = entry.payload.get("content").and_then(Value::as_str);
    let lines = content.map(|text| text.trim_end().to_owned()).into_iter();
    lines.chain(calls).collect::<Vec<_>>().join("\n")
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
            let part = ConversationPart::from_entry(&entry.with_date(DATE));
            part.map(|part| part.format_markdown())
        };
        let prompt = "sender_id=ada|channel=$telegram|chat_id=7\n---Date: 2026-01-02T03:04:05+00:00---\nhi *there*";
        assert_eq!(
            markdown(Entry::message("user", prompt)).as_deref(),
            Some("### User ada (telegram) (2026-01-02 03:04:05)\n\nhi *there*\n\n")
        );
        assert_eq!(
            markdown(Entry::tool_result(vec!["ok".into()])).as_deref(),
            Some("### Tool result (2026-01-02 03:04:05)\n\n```text\nok\n```\n\n")
        );
        assert_eq!(markdown(Entry::event("run", Some(json!({})))), None);
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
