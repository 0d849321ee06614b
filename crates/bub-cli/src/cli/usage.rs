//! `bub usage`: shows token usage and cost by session, model or day.

use std::{io::Write as _, process::ExitCode};

use bub::{AppCommand, CommandContext};
use bub_agent::usage::{GroupBy, UsageRow, usage_report};
use bub_kernel::{Error, ErrorKind, Result};
use bub_model::Catalog;
use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

use super::{output, tape::text};

/// Exit code for invalid arguments.
const EXIT_USAGE: u8 = 2;

pub(super) fn command() -> AppCommand {
    let by = Arg::new("by")
        .long("by")
        .value_parser(["session", "model", "day"])
        .default_value("day");
    let since = Arg::new("since").long("since").value_name("DATE");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue);
    let command = Command::new("usage")
        .about("Show token usage and cost by session, model, or day")
        .long_about(
            "Show token usage and cost by session, model, or day, from the tapes of all workspaces. Costs are in US dollars. \
             They use public prices or `providers.<name>.prices`; unknown prices are marked.",
        )
        .arg(by.help("Group by"))
        .arg(since.help("Only calls since this date (YYYY-MM-DD)"))
        .arg(json.help("Print JSON"));
    AppCommand::new(command, run)
}

async fn run(context: CommandContext) -> Result<ExitCode> {
    let framework = &context.framework;
    let settings = &context.settings;
    let catalog = Catalog::new(settings).map_err(|error| Error::config(error.to_string()))?;
    let argument = |name: &str| context.matches.get_one::<String>(name).map(String::as_str);
    let (by, head) = match argument("by") {
        Some("session") => (GroupBy::Session, "SESSION"),
        Some("model") => (GroupBy::Model, "MODEL"),
        _ => (GroupBy::Day, "DAY"),
    };
    let work = async {
        let store = framework.tape_store().ok_or_else(|| {
            Error::config("no tape store: no plugin provides one; see `bub hooks`")
        })?;
        Ok(usage_report(&*store, &catalog, by, argument("since")).await)
    };
    let (rows, sum, problems) = match framework.run_scoped(work).await? {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let _ = writeln!(
                std::io::stderr(),
                "error: {}",
                output::sanitize_line(error.message())
            );
            return Ok(ExitCode::from(EXIT_USAGE));
        }
        outcome => outcome?,
    };
    for problem in problems {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {}",
            output::sanitize_line(&problem)
        );
    }
    let text = if context.matches.get_flag("json") {
        rows.iter()
            .map(|row| row_json(row, &head.to_lowercase()).to_string() + "\n")
            .collect()
    } else if rows.is_empty() {
        "(no calls)\n".to_owned()
    } else {
        usage_table(head, &rows, &sum)
    };
    output::print(&settings.redactor().redact(&text))
}

fn usage_table(head: &str, rows: &[UsageRow], sum: &UsageRow) -> String {
    let mut lines = vec![[head, "CALLS", "INPUT", "CACHED", "OUTPUT", "COST"].map(str::to_owned)];
    let total = UsageRow {
        name: "total".to_owned(),
        ..sum.clone()
    };
    lines.extend(rows.iter().chain([&total]).map(|row| {
        let counts = [
            row.calls,
            row.tokens.input,
            row.tokens.cached,
            row.tokens.output,
        ]
        .map(|count| count.to_string());
        let [calls, input, cached, output] = counts;
        [
            output::sanitize_line(&row.name),
            calls,
            input,
            cached,
            output,
            cost_text(row),
        ]
    }));
    text::format_columns(&lines)
}

/// Returns the cost of a row. Calls without a known price never count as free.
fn cost_text(row: &UsageRow) -> String {
    match row.unpriced {
        0 => format!("${:.4}", row.cost),
        all if all == row.calls => "unknown".to_owned(),
        some => format!(
            "${:.4} and {} of unknown price",
            row.cost,
            text::format_count(some, "call", "calls")
        ),
    }
}

fn row_json(row: &UsageRow, head: &str) -> Value {
    json!({
        head: row.name,
        "calls": row.calls,
        "input_tokens": row.tokens.input,
        "cached_tokens": row.tokens.cached,
        "cache_write_tokens": row.tokens.cache_write,
        "output_tokens": row.tokens.output,
        "cost": if row.unpriced == row.calls { Value::Null } else { json!(row.cost) },
        "calls_of_unknown_price": row.unpriced,
    })
}
