//! `bub status`: shows the state of the gateway.

use std::fmt::Write as _;

use bub::{AppCommand, CommandContext};
use bub_gateway::{gateway_directory, status};

use clap::{Arg, ArgAction, Command};
use serde_json::{Value, json};

use super::{gateway, output};

pub(super) fn command() -> AppCommand {
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON");
    let command = Command::new("status")
        .about("Show gateway status: channels, queues, and undelivered replies")
        .arg(gateway::name_arg())
        .arg(json);
    AppCommand::new(command, |context: CommandContext| async move {
        let settings = &context.settings;
        let name = gateway::gateway_name(&context.matches);
        let status =
            status::send_request(&gateway_directory(settings, name), &json!({"do": "status"}))
                .await?;
        let text = match status {
            Some(status) if context.matches.get_flag("json") => format!("{status}\n"),
            Some(status) => status_text(name, &status),
            None if context.matches.get_flag("json") => format!("{}\n", json!({"running": false})),
            None => format!("gateway {name}: not running; start it with `bub gateway`\n"),
        };
        output::print_untrusted(&text)
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

fn status_text(name: &str, status: &Value) -> String {
    let count = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let text_at = |value: &Value, key: &str| {
        output::sanitize_line(value.get(key).and_then(Value::as_str).unwrap_or(""))
    };
    let state = if status.get("stopping") == Some(&Value::Bool(true)) {
        "stopping"
    } else {
        "running"
    };
    let mut text = format!("gateway {name}: {state}, pid {}\n", count(status, "pid"));
    for channel in status
        .get("channels")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let _ = write!(
            text,
            "channel {}: {}, {} accepted, {} undelivered",
            text_at(channel, "name"),
            text_at(channel, "state"),
            count(channel, "accepted"),
            count(channel, "undelivered"),
        );
        // A gateway of the previous release has only the old key.
        let access = if channel.get("access").is_some() {
            "access"
        } else {
            "audience"
        };
        for (label, key) in [("last error", "last_error"), ("access", access)] {
            let detail = text_at(channel, key);
            if !detail.is_empty() {
                let _ = write!(text, "; {label}: {detail}");
            }
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(
        text,
        "messages: {} unfinished in {} sessions, {} turns running",
        count(status, "unfinished"),
        count(status, "busy_sessions"),
        count(status, "running_turns"),
    );
    // A gateway of the previous release has only the old key.
    let failed = if status.get("failed").is_some() {
        "failed"
    } else {
        "given_up"
    };
    let _ = writeln!(
        text,
        "replies: {} undelivered ({} failed, {} unclaimed); see `bub outbox list`",
        count(status, "undelivered"),
        count(status, failed),
        count(status, "unclaimed"),
    );
    if let Some(process) = status.get("process") {
        let (memory, files) = (count(process, "memory_mb"), count(process, "files"));
        let _ = writeln!(
            text,
            "process: {memory} MB, {files} open files, {} tasks",
            count(process, "tasks")
        );
    }
    let owners = status
        .get("owners")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let owners: Vec<String> = owners
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let _ = writeln!(text, "{}", roles_line(&owners));
    for session in status
        .get("sessions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let (unfinished, running) = (count(session, "unfinished"), count(session, "running"));
        let _ = writeln!(
            text,
            "session {}: {unfinished} unfinished, {running} running",
            text_at(session, "id")
        );
    }
    text
}
