//! Approvals that are remembered: for the session in memory, and for always as a rule in the config file.

use std::collections::VecDeque;

use bub_kernel::{Error, Result, Role, SessionId, ToolSpec, Turn, escape_invisible};
use bub_settings::{ConfigFile, SettingSource, Settings};
use serde_json::{Map, Value, json};

use super::{Policy, PolicyRule};

/// Maximum number of approvals that are remembered for sessions. The oldest are forgotten first.
const MAX_REMEMBERED_COUNT: usize = 1000;
/// Maximum length of an argument in a rule for always.
const MAX_PATTERN_CHARS: usize = 200;
/// Maximum number of lines of an argument in a rule for always.
const MAX_PATTERN_LINES: usize = 4;

/// The calls that were approved for their session.
#[derive(Debug, Default)]
pub(super) struct SessionApprovals(VecDeque<SessionApproval>);

#[derive(Debug)]
struct SessionApproval {
    session_id: SessionId,
    /// The role of the sender for whom the call was approved.
    role: Role,
    tool: String,
    arguments: Map<String, Value>,
}

impl Policy {
    /// Remembers that a call is approved in the session of the turn.
    pub(crate) fn remember(&self, turn: &Turn, tool: &str, arguments: &Map<String, Value>) {
        let approvals = &mut self.session_approvals.lock().0;
        approvals.truncate(MAX_REMEMBERED_COUNT - 1);
        approvals.push_front(SessionApproval {
            session_id: session_of(turn),
            role: turn.sender().role,
            tool: tool.to_owned(),
            arguments: remembered_arguments(tool, arguments),
        });
    }

    /// Returns whether the call was approved in the session of the turn, for a sender with the same or a lower role.
    pub(crate) fn is_remembered(
        &self,
        turn: &Turn,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> bool {
        let (session_id, role) = (session_of(turn), turn.sender().role);
        let arguments = remembered_arguments(tool, arguments);
        self.session_approvals.lock().0.iter().any(|approval| {
            approval.session_id == session_id
                && approval.role <= role
                && approval.tool == tool
                && approval.arguments == arguments
        })
    }

    /// Forgets the approvals of a session.
    pub(crate) fn forget_session(&self, turn: &Turn) {
        let session_id = session_of(turn);
        let approvals = &mut self.session_approvals.lock().0;
        approvals.retain(|approval| approval.session_id != session_id);
    }

    /// Adds a rule to the config file, before all others, and applies it from now on.
    ///
    /// # Errors
    ///
    /// Fails if the config file cannot be changed. The rule is not applied then.
    pub(crate) fn add_rule(&self, settings: &Settings, rule: Map<String, Value>) -> Result<()> {
        let config_error = |error: bub_settings::EditError| Error::config(error.to_string());
        let mut file = ConfigFile::open(settings.config_file()).map_err(config_error)?;
        let document = file.parse().map_err(config_error)?;
        let recorded = document
            .get("policy")
            .and_then(|policy| policy.get("rules"));
        let recorded = recorded.and_then(Value::as_array).cloned();
        let mut rules = vec![Value::Object(rule.clone())];
        rules.extend(recorded.unwrap_or_default());
        let rules = Value::Array(rules);
        let old_text = file.text().to_owned();
        // Insert a line, so that the format and the comments of the other rules stay.
        if let Some(SettingSource::Config { line, .. }) = settings.origin("policy.rules.0") {
            file.set_text(insert_rule_line(&old_text, line, &rule));
        }
        let parsed = file.parse().unwrap_or_default();
        if parsed.get("policy").and_then(|policy| policy.get("rules")) != Some(&rules) {
            file.set_text(old_text);
            file.set(&["policy", "rules"], &rules)
                .map_err(config_error)?;
        }
        file.save().map_err(config_error)?;
        let origin = SettingSource::Config {
            file: settings.config_file().into(),
            line: 1,
        };
        let rule = PolicyRule::from_map(rule, 0, origin).map_err(Error::config)?;
        self.added_rules.lock().push(rule);
        Ok(())
    }
}

/// Returns the text with a rule before the list item at a line, counted from 1.
fn insert_rule_line(text: &str, line: usize, rule: &Map<String, Value>) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let index = line.saturating_sub(1).min(lines.len());
    let item = lines.get(index).copied().unwrap_or_default();
    let indent: String = item.chars().take_while(|c| *c == ' ').collect();
    let inserted = format!("{indent}- {}\n", Value::Object(rule.clone()));
    lines.insert(index, &inserted);
    lines.concat()
}

/// Returns the session of a turn. Nested runs, such as subagents, belong to the session of their turn.
fn session_of(turn: &Turn) -> SessionId {
    let session_id = turn.inbound().session_id();
    session_id.unwrap_or_else(|| turn.session_id()).clone()
}

/// Returns the arguments that must be equal. The time limit of a command does not change what it does.
fn remembered_arguments(tool: &str, arguments: &Map<String, Value>) -> Map<String, Value> {
    let mut arguments = arguments.clone();
    if tool == "bash" {
        arguments.shift_remove("timeout_seconds");
    }
    arguments
}

/// Returns whether a question can show the text in few rows, as it is. A rule must not push the call that it is for off
/// the screen.
fn is_readable(text: &str) -> bool {
    text.chars().count() <= MAX_PATTERN_CHARS
        && text.lines().count() <= MAX_PATTERN_LINES
        && !["\t", "   ", "\n\n"].iter().any(|part| text.contains(part))
        && text.lines().all(|line| escape_invisible(line) == line)
}

/// Returns the rule that allows exactly this call for the sender's role in the sender's channel. Returns `None` if no
/// rule in the config file can do that: the rules come from the environment, an argument is not a text or has a
/// wildcard, or it is too long.
pub(super) fn exact_rule(
    settings: &Settings,
    turn: &Turn,
    tool: &ToolSpec,
    arguments: &Map<String, Value>,
) -> Option<Map<String, Value>> {
    let origin = settings.origin("policy.rules");
    if !matches!(
        origin,
        None | Some(SettingSource::Default | SettingSource::Config { .. })
    ) {
        return None;
    }
    let mut patterns = Map::new();
    for (name, value) in remembered_arguments(&tool.name, arguments) {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Array(_) | Value::Object(_) => return None,
        };
        if text.contains(['*', '?']) || !is_readable(&text) {
            return None;
        }
        patterns.insert(name, text.into());
    }
    for (name, _) in tool.parameters() {
        let is_time_limit = tool.name == "bash" && name == "timeout_seconds";
        if !is_time_limit && !patterns.contains_key(name) {
            patterns.insert(name.to_owned(), Value::Null);
        }
    }
    let sender = turn.sender();
    let rule = json!({
        "roles": [sender.role.name()], "channels": [sender.channel], "tools": [tool.name],
        "arguments": patterns, "action": "allow",
    });
    rule.as_object().cloned()
}
