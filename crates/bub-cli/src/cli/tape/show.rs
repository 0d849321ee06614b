//! `bub tape show`, `bub tape anchors` and `bub tape info`: show the conversation or the entries, the anchors and the
//! statistics of a tape.

use std::process::ExitCode;

use bub_tape::{AnchorMark, AnchorQuery, Entry, Query, Result, Tape, TapeError, TapeInfo};
use bub_terminal::Style;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    KINDS_HELP,
    conversation::{conversation_parts, format_part},
    entry_kinds,
    text::{self, ColorSupport},
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};
use crate::cli::listing::{ListingLayout, Table, cell};

/// Maximum characters shown of an anchor's state. `bub tape show` shows all of it.
const MAX_STATE_CHARS: usize = 100;

/// Show the conversation on a tape
///
/// Shows messages, tool calls, results, commands, anchors and errors. With `--raw`, `--kinds` or `--json`, shows the entries.
#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// Session id, tape name, or a unique prefix
    tape: String,
    /// Only entries after the latest anchor with this name
    #[arg(long, value_name = "NAME")]
    after_anchor: Option<String>,
    /// Only the last N entries, or N parts of the conversation
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', help = KINDS_HELP)]
    kinds: Vec<String>,
    /// Show all entries with their ids
    #[arg(long)]
    raw: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct SummaryArgs {
    /// Session id, tape name, or a unique prefix
    tape: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(tapes: &WorkspaceTapes, args: ShowArgs) -> Result<ExitCode> {
    let listed = tapes.find_tape(&args.tape).await?;
    let tape = tapes.open_tape(&listed.name);
    let is_raw = args.raw || args.json || !args.kinds.is_empty();
    let mut query = Query::new().kinds(entry_kinds(&args.kinds));
    if let Some(name) = &args.after_anchor {
        find_anchor(&tape, name, listed.label()).await?;
        query = query.after_anchor(name);
    }
    let entries = match args.last {
        Some(count) => {
            let newest = tape.query(query.newest_first()).try_filter(|entry| {
                std::future::ready(is_raw || !conversation_parts(entry).is_empty())
            });
            let newest: Vec<Entry> = newest.take(count).try_collect().await?;
            stream::iter(newest.into_iter().rev().map(Ok)).boxed()
        }
        None => tape.query(query).boxed(),
    };
    let style = ColorSupport::from_settings(&tapes.settings);
    let width = ListingLayout::for_stdout(&tapes.settings).width;
    let shown = if args.json {
        let out = ResultWriter::for_stdout(&tapes.settings);
        out.write_entries(entries, text::entry_json).await?
    } else {
        let out = ResultWriter::for_pager(&tapes.settings);
        let format_parts = |entry: &Entry| {
            let parts = conversation_parts(entry);
            let parts = parts.iter().map(|part| format_part(part, style, width));
            parts.collect::<String>()
        };
        out.write_entries(entries, |entry| {
            if is_raw {
                format_entry(entry, style)
            } else {
                format_parts(entry)
            }
        })
        .await?
    };
    if shown == 0 && !args.json {
        notice!("no entries match");
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats an entry: a headline with id, kind and date, the indented content, and an empty line.
fn format_entry(entry: &Entry, style: ColorSupport) -> String {
    let mut text = format!(
        "{} {}  {}\n",
        style.paint_dim(&format!("#{}", entry.id)),
        style.paint_title(entry),
        style.paint_dim(&text::entry_date(entry))
    );
    for line in text::sanitize(&text::entry_text(entry)).lines() {
        text.push_str(if line.is_empty() { "" } else { "  " });
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

pub(super) async fn list_anchors(tapes: &WorkspaceTapes, args: SummaryArgs) -> Result<ExitCode> {
    let listed = tapes.find_tape(&args.tape).await?;
    let anchors = tapes.open_tape(&listed.name).anchors(usize::MAX).await?;
    if args.json {
        return tapes.print(&anchors.iter().map(text::entry_json).collect::<String>());
    }
    if anchors.is_empty() {
        return tapes.print("(no anchors)\n");
    }
    let mut table = Table::with_head(["ID", "DATE (UTC)", "NAME", "STATE"]).numbers(0, 1);
    for anchor in &anchors {
        let state = text::sanitize_and_truncate(&text::entry_text(anchor), MAX_STATE_CHARS);
        table.row([
            cell(anchor.id.to_string(), Style::NONE),
            cell(text::entry_date(anchor), Style::DIM),
            cell(text::sanitize_line(text::entry_label(anchor)), Style::BOLD),
            cell(state, Style::NONE),
        ]);
    }
    tapes.print_table(table)
}

/// Returns the latest anchor with this name. If the tape has no such anchor, the error suggests
/// `bub tape anchors`.
pub(super) async fn find_anchor(tape: &Tape, name: &str, label: &str) -> Result<AnchorMark> {
    let query = AnchorQuery::LatestNamed(name.to_owned());
    tape.anchor_marks(query).await?.pop().ok_or_else(|| {
        let (name, label) = (text::sanitize_line(name), text::sanitize_line(label));
        TapeError::NotFound(format!(
            "anchor `{name}` not found; see `bub tape anchors {label}`"
        ))
    })
}

pub(super) async fn show_info(tapes: &WorkspaceTapes, args: SummaryArgs) -> Result<ExitCode> {
    let statistics = statistics(&tapes.find_tape(&args.tape).await?);
    if args.json {
        return tapes.print(&text::json_line(&statistics));
    }
    let fields = statistics.as_object().into_iter().flatten();
    let line =
        |(key, value): (&String, &Value)| format!("{key}: {}\n", format_statistic(key, value));
    tapes.print(&fields.map(line).collect::<String>())
}

/// Returns the values of the tool `tape.info` under the names that the tool uses, then the other values of the summary.
fn statistics(listed: &ListedTape) -> Value {
    let info = TapeInfo::from(listed.summary.clone());
    json!({
        "name": listed.name.as_str(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "last_token_cache_hit_rate": info.cache_hit_rate,
        "session_id": listed.session_id(),
        "workspace": listed.workspace(),
        "channel": listed.channel(),
        "title": listed.summary.title,
        "model": listed.summary.model,
        "reasoning_effort": listed.summary.reasoning_effort,
        "first_date": listed.summary.first_date,
        "last_date": listed.summary.last_date,
    })
}

/// Formats a value like the tool `tape.info`: a rate as a percentage, an unknown value as `None`.
fn format_statistic(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text::sanitize_line(text),
        Value::Number(rate) if key == "last_token_cache_hit_rate" => {
            format!("{:.2}%", rate.as_f64().unwrap_or_default() * 100.0)
        }
        other => other.to_string(),
    }
}
