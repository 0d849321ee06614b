//! `bub tape info`: the figures of a tape.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::{Result, TapeInfo, codec};
use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::{
    context::{ListedTape, WorkspaceTapes},
    json_arg, tape_arg, text, text_of,
    writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("info")
        .about("Show statistics of a tape")
        .arg(tape_arg())
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let found = tapes
        .find(text_of(matches, "tape").unwrap_or_default())
        .await?;
    let figures = figures(found);
    let shown = if matches.get_flag("json") {
        text::harmless_json(&(codec::to_python_json(&figures) + "\n")).into_owned()
    } else {
        figures
            .iter()
            .fold(String::new(), |mut lines, (key, value)| {
                let _ = writeln!(lines, "{key}: {}", plain(key, value));
                lines
            })
    };
    let mut out = ResultWriter::plain(&tapes.settings);
    out.write(&shown)?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// The seven of the tool `tape.info` first, under its names; then what else the index knows.
fn figures(found: ListedTape) -> Map<String, Value> {
    let ListedTape { name, summary } = found;
    let session = summary.session.clone().unwrap_or_default();
    let known = summary.session.is_some();
    let more = json!({
        "session_id": known.then_some(session.session_id),
        "workspace": session.workspace,
        "channel": session.channel,
        "title": summary.title,
        "model": summary.model,
        "reasoning_effort": summary.reasoning_effort,
        "first_date": summary.first_date,
        "last_date": summary.last_date,
    });
    let info = TapeInfo::from(summary);
    let figures = json!({
        "name": name.as_str(),
        "entries": info.entries,
        "anchors": info.anchors,
        "last_anchor": info.last_anchor,
        "entries_since_last_anchor": info.entries_since_last_anchor,
        "last_token_usage": info.last_token_usage,
        "last_token_cache_hit_rate": info.cache_hit_rate,
    });
    [figures, more]
        .into_iter()
        .filter_map(|value| value.as_object().cloned())
        .flatten()
        .collect()
}

/// As the tool `tape.info` writes values: a share in percent, `None` for what is not known.
fn plain(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text::line(text),
        Value::Number(rate) if key == "last_token_cache_hit_rate" => {
            format!("{:.2}%", rate.as_f64().unwrap_or_default() * 100.0)
        }
        other => other.to_string(),
    }
}
