//! `bub trust`: trusts a workspace, and lists and removes the decisions about workspaces.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::{CommandContext, args, trust::describe_items};
use bub_kernel::{Error, Result};
use bub_settings::{TrustRecord, TrustReport, WorkspaceTrust};
use bub_terminal::Style;
use serde_json::json;

use super::{
    listing::{Listing, Table, cell},
    output,
};

#[derive(clap::Args)]
#[command(
    long_about = "Trust a workspace: its .env, skills, mcp.json, and plugins then take effect, and its AGENTS.md counts as \
                  your own instructions. Prints what is trusted. If a file changes, the workspace is not trusted until \
                  you run `bub trust` again.",
    args_conflicts_with_subcommands = true
)]
pub(super) struct TrustArgs {
    /// Directory to trust [default: the workspace]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<TrustCommand>,
}

#[derive(clap::Subcommand)]
enum TrustCommand {
    /// List the workspaces that you trusted or declined to trust
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the decision about a workspace
    Remove {
        /// Workspace from `bub trust list`
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

pub(super) async fn run(context: CommandContext, args: TrustArgs) -> Result<ExitCode> {
    let trust = context.settings.workspace_trust();
    let invalid = |error: &dyn std::error::Error| Error::config(error.to_string());
    let text = match args.command {
        Some(TrustCommand::List { json }) => {
            let records = trust.records().map_err(|error| invalid(&error))?;
            if !json {
                return list_records(&records).print(&context.settings);
            }
            records_json(&records)
        }
        Some(TrustCommand::Remove { directory }) => {
            let workspace = resolve_directory(&directory);
            let shown = output::sanitize_line(&workspace.to_string_lossy());
            if !trust.forget(&workspace).map_err(|error| invalid(&error))? {
                return Err(Error::invalid_input(format!(
                    "unknown workspace `{shown}`; run `bub trust list` to list workspaces"
                )));
            }
            format!("removed {shown}\n")
        }
        None => match args.directory {
            None => trust_workspace(trust, context.settings.trust_report().clone())?,
            Some(directory) => {
                args::check_workspace(&directory).map_err(Error::invalid_input)?;
                let trust = WorkspaceTrust::new(context.settings.environment(), Some(&directory));
                trust_workspace(&trust, trust.inspect(&directory))?
            }
        },
    };
    output::print(&text)
}

/// Trusts the files in a report. Returns the list of these files.
pub(super) fn trust_workspace(trust: &WorkspaceTrust, mut report: TrustReport) -> Result<String> {
    let workspace = output::sanitize_line(&report.workspace.to_string_lossy());
    if report.items.is_empty() {
        return Ok(format!(
            "{workspace}: nothing to trust; it has no .env, skills, mcp.json, plugins, or AGENTS.md\n"
        ));
    }
    let mut problems = report.items.iter().filter_map(|item| {
        let reason = item.digest.as_ref().err()?;
        Some(format!("{}: {reason}", item.path.display()))
    });
    if let Some(problem) = problems.next() {
        return Err(Error::invalid_input(format!(
            "{problem}; remove files that bub does not need"
        )));
    }
    trust
        .remember(&mut report, true)
        .map_err(|error| Error::config(error.to_string()))?;
    let items = describe_items(&report, true);
    Ok(format!("trusted {workspace}\n{items}"))
}

/// Returns the path under which a workspace is stored. The directory may not exist anymore.
fn resolve_directory(directory: &Path) -> PathBuf {
    let resolved = directory.canonicalize();
    let resolved = resolved.or_else(|_| std::path::absolute(directory));
    resolved.unwrap_or_else(|_| directory.to_owned())
}

fn state(record: &TrustRecord) -> &'static str {
    match (record.is_trusted, record.is_current()) {
        (true, true) => "trusted",
        (false, true) => "declined",
        (_, false) => "changed",
    }
}

fn list_records(records: &[TrustRecord]) -> Listing {
    let mut table = Table::default();
    for record in records {
        let items = record.items.iter().map(|item| {
            let path = item.path.strip_prefix(&record.workspace);
            path.unwrap_or(&item.path).display().to_string()
        });
        let items = items.collect::<Vec<_>>().join(", ");
        let state = state(record);
        let style = match state {
            "trusted" => Style::GREEN,
            "declined" => Style::DIM,
            _ => Style::YELLOW,
        };
        table.row([
            // As wide as the longest state.
            cell(format!("{state:8}"), style),
            cell(record.workspace.display().to_string(), Style::BOLD),
            cell(items, Style::NONE),
        ]);
    }
    Listing::from(table).or_row("no trusted workspaces")
}

fn records_json(records: &[TrustRecord]) -> String {
    let records = records.iter().map(|record| {
        json!({"workspace": record.workspace, "state": state(record), "items": record.items})
    });
    format!("{:#}\n", json!(records.collect::<Vec<_>>()))
}
