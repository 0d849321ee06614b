//! `bub status`: shows the state of the gateway.

use std::{fmt::Write as _, path::Path, process::ExitCode};

use bub::CommandContext;
use bub_agent::WorkspaceExposure;
use bub_gateway::{gateway_directory, status};
use bub_kernel::Result;
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    gateway,
    listing::{Listing, cell},
    output,
};

#[derive(clap::Args)]
pub(super) struct StatusArgs {
    /// Gateway name, if several share one home
    #[arg(long, default_value = "main", value_parser = gateway::parse_name)]
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    context: CommandContext,
    StatusArgs { name, json }: StatusArgs,
) -> Result<ExitCode> {
    let directory = gateway_directory(&context.settings, &name);
    let status = status::send_request(&directory, &json!({"do": "status"})).await?;
    if json {
        let status = status.unwrap_or_else(|| json!({"running": false}));
        return output::print_untrusted(&format!("{status}\n"));
    }
    let mut listing = Listing::default();
    match status {
        Some(status) => {
            list_status(&mut listing, &name, &status);
            let workspace = status
                .get("workspace")
                .and_then(Value::as_str)
                .map(Path::new);
            let find = |path| WorkspaceExposure::find(&context.settings, path);
            if let Some(exposure) = workspace.and_then(find) {
                let warning = cell(format!("warning: {exposure}"), Style::YELLOW);
                listing.styled_row([warning]);
            }
        }
        None => listing.row(format!(
            "gateway {name}: not running; start it with `bub gateway`"
        )),
    }
    listing.print(&context.settings)
}

/// Describes the roles of users in one line.
pub(super) fn roles_line(owners: &[String]) -> String {
    let owners = if owners.is_empty() {
        "none (set `owners`)".to_owned()
    } else {
        owners.join(", ")
    };
    format!(
        "owners: {owners}; the channel decides the role of other users, default guest; see `bub policy`"
    )
}

/// Returns a number in an answer of the gateway, or 0.
pub(super) fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Returns a text in an answer of the gateway, or an empty string.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default().trim()
}

/// Returns the items of a list in an answer of the gateway.
pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the style of the state of a gateway, channel or service.
fn state_style(state: &str) -> Style {
    match state {
        "running" => Style::GREEN,
        "failed" => Style::RED,
        _ => Style::YELLOW,
    }
}

fn list_status(listing: &mut Listing, name: &str, status: &Value) {
    let is_stopping = status["stopping"] == true;
    let state = if is_stopping { "stopping" } else { "running" };
    listing.styled_row([
        cell(format!("gateway {name}"), Style::BOLD),
        cell(": ", Style::NONE),
        cell(state, state_style(state)),
        cell(format!(", pid {}", count(&status["pid"])), Style::NONE),
    ]);
    for channel in items(&status["channels"]) {
        let state = text(&channel["state"]);
        let mut row = format!(
            ", {} accepted, {} undelivered",
            count(&channel["accepted"]),
            count(&channel["undelivered"]),
        );
        // A gateway of the previous release has only the old key.
        let access = channel.get("access").unwrap_or(&channel["audience"]);
        for (label, detail) in [("last error", &channel["last_error"]), ("access", access)] {
            let detail = text(detail);
            if !detail.is_empty() {
                let _ = write!(row, "; {label}: {detail}");
            }
        }
        listing.styled_row([
            cell(format!("channel {}: ", text(&channel["name"])), Style::NONE),
            cell(state, state_style(state)),
            cell(row, Style::NONE),
        ]);
    }
    for service in items(&status["services"]) {
        let (name, state) = (text(&service["name"]), text(&service["state"]));
        let error = match text(&service["last_error"]) {
            "" => String::new(),
            error => format!("; last error: {error}"),
        };
        listing.styled_row([
            cell(format!("service {name}: "), Style::NONE),
            cell(state, state_style(state)),
            cell(error, Style::RED),
        ]);
    }
    listing.row(format!(
        "messages: {} unfinished in {} sessions, {} turns running",
        count(&status["unfinished"]),
        count(&status["busy_sessions"]),
        count(&status["running_turns"]),
    ));
    // A gateway of the previous release has only the old key.
    let failed = status.get("failed").unwrap_or(&status["given_up"]);
    listing.row(format!(
        "replies: {} undelivered ({} failed, {} unclaimed); see `bub outbox list`",
        count(&status["undelivered"]),
        count(failed),
        count(&status["unclaimed"]),
    ));
    if let Some(process) = status.get("process") {
        listing.row(format!(
            "process: {} MB, {} open files, {} tasks",
            count(&process["memory_mb"]),
            count(&process["files"]),
            count(&process["tasks"]),
        ));
    }
    let owners = items(&status["owners"]).filter_map(Value::as_str);
    let owners: Vec<_> = owners.map(str::to_owned).collect();
    listing.row(roles_line(&owners));
    for session in items(&status["sessions"]) {
        listing.row(format!(
            "session {}: {} unfinished, {} running",
            text(&session["id"]),
            count(&session["unfinished"]),
            count(&session["running"]),
        ));
    }
}
