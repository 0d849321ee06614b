//! `bub status`: shows the state of the gateway.

use std::{fmt::Write as _, path::Path, process::ExitCode};

use bub::CommandContext;
use bub_agent::WorkspaceExposure;
use bub_gateway::{gateway_directory, status};
use bub_kernel::Result;
use serde_json::{Value, json};

use super::{gateway, output};

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
    output::print_untrusted(&match status {
        Some(status) if json => format!("{status}\n"),
        Some(status) => {
            let mut text = status_text(&name, &status);
            let workspace = status
                .get("workspace")
                .and_then(Value::as_str)
                .map(Path::new);
            let find = |path| WorkspaceExposure::find(&context.settings, path);
            if let Some(exposure) = workspace.and_then(find) {
                let _ = writeln!(text, "warning: {exposure}");
            }
            text
        }
        None if json => format!("{}\n", json!({"running": false})),
        None => format!("gateway {name}: not running; start it with `bub gateway`\n"),
    })
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

/// Returns a text in an answer of the gateway in one line, or an empty string.
pub(super) fn line(value: &Value) -> String {
    output::sanitize_line(value.as_str().unwrap_or_default())
}

/// Returns the items of a list in an answer of the gateway.
pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn status_text(name: &str, status: &Value) -> String {
    let is_stopping = status["stopping"] == true;
    let state = if is_stopping { "stopping" } else { "running" };
    let mut text = format!("gateway {name}: {state}, pid {}\n", count(&status["pid"]));
    for channel in items(&status["channels"]) {
        let _ = write!(
            text,
            "channel {}: {}, {} accepted, {} undelivered",
            line(&channel["name"]),
            line(&channel["state"]),
            count(&channel["accepted"]),
            count(&channel["undelivered"]),
        );
        // A gateway of the previous release has only the old key.
        let access = channel.get("access").unwrap_or(&channel["audience"]);
        for (label, detail) in [("last error", &channel["last_error"]), ("access", access)] {
            let detail = line(detail);
            if !detail.is_empty() {
                let _ = write!(text, "; {label}: {detail}");
            }
        }
        text.push('\n');
    }
    for service in items(&status["services"]) {
        let (name, state) = (line(&service["name"]), line(&service["state"]));
        let _ = write!(text, "service {name}: {state}");
        let last_error = line(&service["last_error"]);
        if !last_error.is_empty() {
            let _ = write!(text, "; last error: {last_error}");
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "messages: {} unfinished in {} sessions, {} turns running",
        count(&status["unfinished"]),
        count(&status["busy_sessions"]),
        count(&status["running_turns"]),
    );
    // A gateway of the previous release has only the old key.
    let failed = status.get("failed").unwrap_or(&status["given_up"]);
    let _ = writeln!(
        text,
        "replies: {} undelivered ({} failed, {} unclaimed); see `bub outbox list`",
        count(&status["undelivered"]),
        count(failed),
        count(&status["unclaimed"]),
    );
    if let Some(process) = status.get("process") {
        let _ = writeln!(
            text,
            "process: {} MB, {} open files, {} tasks",
            count(&process["memory_mb"]),
            count(&process["files"]),
            count(&process["tasks"]),
        );
    }
    let owners = items(&status["owners"]).filter_map(Value::as_str);
    let owners: Vec<_> = owners.map(str::to_owned).collect();
    let _ = writeln!(text, "{}", roles_line(&owners));
    for session in items(&status["sessions"]) {
        let _ = writeln!(
            text,
            "session {}: {} unfinished, {} running",
            line(&session["id"]),
            count(&session["unfinished"]),
            count(&session["running"]),
        );
    }
    text
}
