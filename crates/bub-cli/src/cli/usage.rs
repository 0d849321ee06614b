//! `bub usage`: shows token usage and cost by session, model or day.

use std::{borrow::Cow, process::ExitCode};

use bub::CommandContext;
use bub_agent::usage::{GroupBy, UsageRow, usage_report};
use bub_kernel::{Error, Result};
use bub_model::Catalog;
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    dates::parse_date,
    listing::{Listing, Table, cell},
    output,
    tape::text,
};

/// Show token usage and cost by session, model, or day
///
/// Reads the tapes of all workspaces. Costs are in US dollars. They use public prices or `providers.<name>.prices`;
/// unknown prices are marked.
#[derive(clap::Args)]
pub(super) struct UsageArgs {
    /// Group by
    #[arg(long, value_name = "by", value_parser = ["session", "model", "day"], default_value = "day")]
    by: String,
    /// Only calls since this date or time, such as 2026-01-31, or since an age, such as 7d
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    since: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: CommandContext, args: UsageArgs) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let catalog = Catalog::new(settings).map_err(|error| Error::config(error.to_string()))?;
    let by = args.by.parse().unwrap_or(GroupBy::Day);
    let work = async {
        let store = super::tape_store(framework)?;
        usage_report(&*store, &catalog, by, args.since.as_deref()).await
    };
    let (rows, sum, problems) = framework.run_scoped(work).await?;
    for problem in problems {
        notice!("skipped: {}", output::sanitize_line(&problem));
    }
    if args.json {
        let lines = rows.iter();
        let lines = lines.map(|row| format!("{}\n", row_json(row, &args.by)));
        let text: String = lines.collect();
        return output::print(&settings.redactor().redact(&text));
    }
    if rows.is_empty() {
        return output::print("(no calls)\n");
    }
    Listing::from(usage_table(args.by.to_uppercase(), &rows, &sum)).print(settings)
}

fn usage_table(head: String, rows: &[UsageRow], sum: &UsageRow) -> Table {
    let names = ["CALLS", "INPUT", "CACHED", "OUTPUT", "COST"];
    let head = [head.into()].into_iter().chain(names.map(Cow::Borrowed));
    let mut table = Table::with_head(head).numbers(1, 4);
    let total = UsageRow {
        name: "total".to_owned(),
        ..sum.clone()
    };
    let mut add = |row: &UsageRow, style| {
        let numbers = [
            row.calls,
            row.tokens.input,
            row.tokens.cached,
            row.tokens.output,
        ];
        let texts = [row.name.clone()].into_iter();
        let texts = texts.chain(numbers.map(|number| number.to_string()));
        table.row(texts.chain([cost_text(row)]).map(|text| cell(text, style)));
    };
    for row in rows {
        add(row, Style::NONE);
    }
    add(&total, Style::BOLD);
    table
}

/// Returns the cost of a row. Calls without a known price never count as free.
fn cost_text(row: &UsageRow) -> String {
    let calls = text::format_count(row.unpriced, "call", "calls");
    match row.unpriced {
        0 => format!("${:.4}", row.cost),
        all if all == row.calls => "unknown".to_owned(),
        _ => format!("${:.4} and {calls} of unknown price", row.cost),
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
