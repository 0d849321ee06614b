//! `bub tape info`: shows statistics of a tape.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::{Result, TapeInfo, codec};
use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::{
    json_arg, tape_arg, text, text_arg,
    workspace_tapes::{ListedTape, WorkspaceTapes},
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("info")
        .about("Show statistics of a tape")
        .arg(tape_arg())
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let listed = tapes
        .find_tape(text_arg(matches, "tape").unwrap_or_default())
        .await?;
    let statistics = statistics(listed);
    let text = if matches.get_flag("json") {
        text::escape_json(&(codec::to_python_json(&statistics) + "\n")).into_owned()
    } else {
        statistics
            .iter()
            .fold(String::new(), |mut lines, (key, value)| {
                let _ = writeln!(lines, "{key}: {}", format_value(key, value));
                lines
            })
    };
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    out.write(&text)?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the values of the tool `tape.info` under the names that the tool uses, then the other values of the summary.
fn statistics(listed: ListedTape) -> Map<String, Value> {
    let ListedTape { name, summary } = listed;
    let session = summary.session.clone().unwrap_or_default();
    let is_known = summary.session.is_some();
    let more = json!({
        "session_id": is_known.then_some(session.session_id),
        "workspace": session.workspace,
        "channel": session.channel,
        "title": summary.title,
        "model": summary.model,
        "reasoning_effort": summary.reasoning_effort,
        "first_date": summary.first_date,
        "last_date": summary.last_date,
    });
    let info = TapeInfo::from(summary);
    let tool_values = json!({
        "name": name.as_str(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "last_token_cache_hit_rate": info.cache_hit_rate,
    });
    [tool_values, more]
        .into_iter()
        .filter_map(|value| value.as_object().cloned())
        .flatten()
        .collect()
}

/// Formats a value like the tool `tape.info`: a rate as a percentage, an unknown value as `None`.
fn format_value(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text::sanitize_line(text),
        Value::Number(rate) if key == "last_token_cache_hit_rate" => {
            format!("{:.2}%", rate.as_f64().unwrap_or_default() * 100.0)
        }
        other => other.to_string(),
    }
}
