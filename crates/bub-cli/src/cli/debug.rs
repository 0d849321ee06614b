//! `bub debug request`: shows the next request of a session and what each part of it costs.

use std::{collections::HashSet, fmt::Write as _, process::ExitCode};

use bub::CommandContext;
use bub_agent::estimate_tokens;
use bub_kernel::{
    ChannelMessage, Error, Framework, Inbound, PreviewedRequest, Result, Sender, SessionId,
    hooks::{
        HookPoint,
        point::{RunModel, RunModelStream},
    },
    tape_error,
};
use bub_tape::{Entry, EntryId, EntryKind, EntryRange, Tape};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};

use super::{listing::format_columns, output, tape::text};

/// Show what the model would get
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct DebugArgs {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(clap::Subcommand)]
enum DebugCommand {
    Request(RequestArgs),
}

/// Show the next request of a session and the size of its parts
///
/// Sends nothing and does not change the tape. Token counts are estimates; the provider reports exact ones.
#[derive(clap::Args)]
struct RequestArgs {
    /// Session id
    #[arg(default_value = "cli:local")]
    session: String,
    /// Next message of the session
    #[arg(long, value_name = "TEXT", default_value = "(your next message)")]
    message: String,
    /// Print the body of the request before the sizes
    #[arg(long, conflicts_with = "json")]
    body: bool,
    /// Print JSON, with the body of the request
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: CommandContext, args: DebugArgs) -> Result<ExitCode> {
    let DebugCommand::Request(args) = args.command;
    let framework = &context.framework;
    check_model_stage(framework)?;
    let session_id = SessionId::from(args.session.as_str());
    let (request, last) = framework
        .run_scoped(async {
            let tape = framework.session_tape(&session_id)?;
            let tape = tape.ok_or_else(|| Error::config("no tape store: see `bub hooks`"))?;
            let summary = tape.summary().await.map_err(tape_error)?;
            let channel = summary.session.and_then(|session| session.channel);
            let channel = channel.unwrap_or_else(|| "cli".to_owned());
            let chat_id = args.session.strip_prefix(&format!("{channel}:"));
            let message = ChannelMessage::new(&*args.session, channel.as_str(), &*args.message)
                .chat_id(chat_id.unwrap_or("local"))
                .context("sender_id", "human");
            let mut inbound = Inbound::from(message).with_sender(Sender::terminal());
            inbound.set_session_id(session_id.clone());
            let request = framework.preview_request(inbound).await?;
            Ok((request, LastRequest::read(&tape).await?))
        })
        .await?;
    let parts = request_parts(&request);
    let text = if args.json {
        let parts: Vec<Value> = parts.iter().map(Part::to_json).collect();
        let last = last.map(|last| last.compare(&request).to_json());
        let report = json!({
            "model": request.model, "path": request.path, "body": request.body, "parts": parts, "last": last,
        });
        format!("{report}\n")
    } else {
        let mut text = String::new();
        if args.body {
            let _ = writeln!(text, "POST {}\n{:#}\n", request.path, request.body);
        }
        text.push_str(&part_table(&parts));
        let last = last.map(|last| last.compare(&request).to_display_string());
        let _ = writeln!(
            text,
            "\n{}",
            last.as_deref()
                .unwrap_or("No request was sent in this session.")
        );
        text
    };
    output::print(&output::sanitize(
        &context.settings.redactor().redact(&text),
    ))
}

/// Fails if a plugin would answer the message: it may send requests that bub cannot show.
fn check_model_stage(framework: &Framework) -> Result<()> {
    let hooks = framework.hooks();
    let streams = RunModelStream::implementations(hooks).iter();
    let plugins = streams.map(|implementation| implementation.plugin().to_string());
    let texts = RunModel::implementations(hooks).iter();
    let plugins = plugins.chain(texts.map(|implementation| implementation.plugin().to_string()));
    match plugins.into_iter().find(|plugin| plugin != "builtin") {
        Some(plugin) => Err(Error::config(format!(
            "cannot show the request: the plugin `{plugin}` answers messages; remove it with `bub plugin remove {plugin}`"
        ))),
        None => Ok(()),
    }
}

/// One part of a request.
struct Part {
    kind: &'static str,
    name: String,
    characters: usize,
    tokens: u64,
}

impl Part {
    fn new(kind: &'static str, name: impl Into<String>, value: &Value) -> Self {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Self {
            kind,
            name: name.into(),
            characters: text.chars().count(),
            tokens: estimate_tokens([value]),
        }
    }

    fn to_json(&self) -> Value {
        let Self { kind, name, .. } = self;
        json!({"kind": kind, "name": name, "characters": self.characters, "tokens": self.tokens})
    }
}

/// Returns the parts of a request in the order in which the model gets them.
fn request_parts(request: &PreviewedRequest) -> Vec<Part> {
    let mut parts = Vec::new();
    let last = request.messages.len().saturating_sub(1);
    for (index, message) in request.messages.iter().enumerate() {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let content = message.get("content").unwrap_or(&Value::Null);
        match (role, content) {
            ("system", Value::String(text)) => parts.extend(system_parts(text)),
            ("user", content) if index == last => parts.push(Part::new("message", "next", content)),
            ("user", Value::String(text)) if text.starts_with("<handoff") => {
                parts.push(Part::new("message", "handoff", content));
            }
            ("assistant", _) if message.get("tool_calls").is_some() => {
                parts.push(Part::new("message", "assistant, tool calls", message));
            }
            (role, content) => parts.push(Part::new("message", role, content)),
        }
    }
    parts.extend(request.tools.iter().map(|tool| {
        let name = tool.pointer("/function/name").and_then(Value::as_str);
        Part::new("tool", name.unwrap_or_default(), tool)
    }));
    parts
}

/// Splits a system prompt into its blocks, such as `<environment>` to `</environment>`. Text outside of blocks is a separate
/// part.
fn system_parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut name, mut block) = (String::new(), String::new());
    for line in text.lines() {
        let tag = line
            .strip_prefix('<')
            .and_then(|rest| rest.strip_suffix('>'));
        if let Some(tag) = tag.filter(|tag| name.is_empty() && !tag.starts_with('/')) {
            push_block(&mut parts, "(text)", &mut block);
            tag.clone_into(&mut name);
        }
        block.push_str(line);
        block.push('\n');
        if tag.and_then(|tag| tag.strip_prefix('/')) == Some(&name) {
            push_block(&mut parts, &name, &mut block);
            name.clear();
        }
    }
    let rest = if name.is_empty() { "(text)" } else { &name };
    push_block(&mut parts, rest, &mut block);
    parts
}

/// Adds a block of the system prompt, unless it is blank, and empties it. Each item of the list of skills is a part.
fn push_block(parts: &mut Vec<Part>, name: &str, block: &mut String) {
    let text = std::mem::take(block);
    if text.trim().is_empty() {
        return;
    }
    if name != "available_skills" {
        parts.push(Part::new("system", name, &text.trim().into()));
        return;
    }
    for item in text.split("\n- ").skip(1) {
        let (skill, _) = item.split_once(':').unwrap_or((item, ""));
        parts.push(Part::new("skill", skill, &item.into()));
    }
}

/// Formats the parts as a table. Messages between the first and the next one are one line per role.
fn part_table(parts: &[Part]) -> String {
    let mut rows: Vec<(String, usize, usize, u64)> = Vec::new();
    for part in parts {
        let name = format!("{} {}", part.kind, part.name);
        match rows.iter_mut().find(|row| row.0 == name) {
            Some(row) => {
                row.1 += 1;
                row.2 += part.characters;
                row.3 += part.tokens;
            }
            None => rows.push((name, 1, part.characters, part.tokens)),
        }
    }
    let total = |kind: &str| {
        let parts = parts
            .iter()
            .filter(|part| kind.is_empty() || part.kind == kind);
        let sizes = parts.map(|part| (1, part.characters, part.tokens));
        sizes.fold((0, 0, 0), |sum, size| {
            (sum.0 + size.0, sum.1 + size.1, sum.2 + size.2)
        })
    };
    for (label, kind) in [
        ("all system blocks", "system"),
        ("all skills", "skill"),
        ("all messages", "message"),
        ("all tools", "tool"),
        ("total", ""),
    ] {
        let (count, characters, tokens) = total(kind);
        rows.push((label.to_owned(), count, characters, tokens));
    }
    let mut lines = vec![["PART", "COUNT", "CHARACTERS", "TOKENS"].map(str::to_owned)];
    lines.extend(rows.into_iter().map(|(name, count, characters, tokens)| {
        let name = output::sanitize_line(&name);
        [
            name,
            count.to_string(),
            characters.to_string(),
            tokens.to_string(),
        ]
    }));
    format_columns(&lines)
}

/// The last request of a session, as its tape records it.
struct LastRequest {
    model: Option<String>,
    system: Option<String>,
    view: Vec<EntryId>,
    usage: Value,
    /// The entries of the tape that a view can contain.
    entries: Vec<Entry>,
}

impl LastRequest {
    /// Reads the last request from a tape. Returns `None` if the tape has none, or if the Python version recorded it.
    async fn read(tape: &Tape) -> Result<Option<Self>> {
        let entries = tape.store().read(tape.name(), EntryRange::ALL);
        let mut entries: Vec<Entry> = entries.try_collect().await.map_err(tape_error)?;
        let field = |entry: &Entry, key: &str| entry.data()?.get(key).cloned();
        let newest = |key: &str| entries.iter().rev().find_map(|entry| field(entry, key));
        let Some(Value::Array(ranges)) = newest("view") else {
            return Ok(None);
        };
        let has_view = |entry: &&Entry| field(entry, "view").is_some();
        let request = entries.iter().rev().find(has_view);
        let text = |key: &str| Some(field(request?, key)?.as_str()?.to_owned());
        let (model, hash) = (text("model"), text("system_sha256"));
        let usage = newest("usage").unwrap_or_default();
        let is_in_view = |entry: &&Entry| {
            let id = Some(entry.id.get());
            let bound = |range: &Value, index: usize| range.get(index).and_then(Value::as_i64);
            let mut ranges = ranges.iter();
            can_be_in_view(entry)
                && ranges.any(|range| bound(range, 0) <= id && id <= bound(range, 1))
        };
        let view = entries.iter().filter(is_in_view).map(|entry| entry.id);
        let view = view.collect();
        // An event without a hash refers to the newest system prompt on the tape.
        let is_system = |entry: &&Entry| match &hash {
            Some(hash) => entry.meta.get("sha256").and_then(Value::as_str) == Some(hash),
            None => entry.kind == EntryKind::System,
        };
        let system = entries.iter().rev().find(is_system);
        let system = system.and_then(|entry| entry.payload.get("content")?.as_str());
        let system = system.map(str::to_owned);
        entries.retain(can_be_in_view);
        Ok(Some(Self {
            model,
            system,
            view,
            usage,
            entries,
        }))
    }

    /// Compares the last request with the next one.
    fn compare(&self, next: &PreviewedRequest) -> Comparison {
        let system = next
            .messages
            .first()
            .and_then(|message| message.get("content"));
        let is_system_same = system.and_then(Value::as_str) == self.system.as_deref();
        let (old, new): (HashSet<_>, HashSet<_>) =
            (self.view.iter().collect(), next.view.iter().collect());
        let size = |ids: &mut dyn Iterator<Item = &EntryId>| {
            let ids: HashSet<_> = ids.collect();
            let entries = self.entries.iter().filter(|entry| ids.contains(&entry.id));
            let tokens = entries.map(|entry| estimate_tokens(entry.payload.values()));
            tokens.fold((0, 0), |(count, sum), tokens| (count + 1, sum + tokens))
        };
        Comparison {
            model: self.model.clone().filter(|model| *model != next.model),
            is_system_same,
            kept: size(&mut self.view.iter().filter(|id| new.contains(id))),
            removed: size(&mut self.view.iter().filter(|id| !new.contains(id))),
            added: size(&mut next.view.iter().filter(|id| !old.contains(id))),
            usage: self.usage.clone(),
        }
    }
}

/// Returns whether views can contain an entry.
fn can_be_in_view(entry: &Entry) -> bool {
    let kinds = [
        EntryKind::Anchor,
        EntryKind::Message,
        EntryKind::ToolCall,
        EntryKind::ToolResult,
    ];
    kinds.contains(&entry.kind) && entry.is_in_context()
}

/// The difference between the last request and the next one. Entries are counted with their estimated tokens.
struct Comparison {
    /// The model of the last request, if the next one has another.
    model: Option<String>,
    is_system_same: bool,
    kept: (usize, u64),
    removed: (usize, u64),
    added: (usize, u64),
    usage: Value,
}

impl Comparison {
    fn to_json(&self) -> Value {
        let entries = |(count, tokens): (usize, u64)| json!({"entries": count, "tokens": tokens});
        json!({
            "model": self.model, "is_system_same": self.is_system_same, "kept": entries(self.kept),
            "removed": entries(self.removed), "added": entries(self.added), "usage": self.usage,
        })
    }

    fn to_display_string(&self) -> String {
        let entries = |(count, tokens): (usize, u64)| {
            format!(
                "{} ({tokens} tokens)",
                text::format_count(count, "entry", "entries")
            )
        };
        let mut lines = vec!["Compared with the last request:".to_owned()];
        if let Some(model) = &self.model {
            lines.push(format!("  model: was {model}"));
        }
        let system = if self.is_system_same {
            "unchanged"
        } else {
            "changed, so the provider's cache does not apply"
        };
        lines.push(format!("  system prompt: {system}"));
        lines.push(format!(
            "  messages: {} kept, {} removed, {} added",
            entries(self.kept),
            entries(self.removed),
            entries(self.added)
        ));
        let count = |path: &str| self.usage.pointer(path).and_then(Value::as_u64);
        if let Some(prompt) = count("/prompt_tokens") {
            let cached = count("/prompt_tokens_details/cached_tokens").unwrap_or_default();
            lines.push(format!(
                "  the provider reported {prompt} prompt tokens, {cached} of them from its cache"
            ));
        }
        lines.join("\n")
    }
}
