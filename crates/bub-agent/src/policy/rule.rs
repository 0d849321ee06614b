//! One rule of the configuration.

use std::fmt::Write;

use bub_kernel::{Role, Sender, ToolSpec};
use bub_settings::SettingSource;
use serde_json::{Map, Value};

use super::glob;

/// What is to happen to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// It is made.
    Allow,
    /// A person is asked.
    Ask,
    /// It is not made.
    Deny,
}

impl PolicyAction {
    const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// For whom, which calls, and what is to happen to them. A part that is not written fits everything.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRule {
    /// Its position, counted from 1.
    pub number: usize,
    /// Where it is written.
    pub origin: SettingSource,
    /// The roles it is about.
    pub roles: Option<Vec<Role>>,
    /// The channels it is about, as patterns.
    pub channels: Option<Vec<String>>,
    /// The tools it is about, as patterns.
    pub tools: Option<Vec<String>>,
    /// Arguments the call must have, each with the pattern it must fit.
    pub arguments: Vec<(String, String)>,
    /// What is to happen.
    pub action: PolicyAction,
    /// Why; people and models are told.
    pub reason: Option<String>,
}

impl PolicyRule {
    pub(super) fn read(
        mut map: Map<String, Value>,
        number: usize,
        origin: SettingSource,
    ) -> Result<Self, String> {
        const KEYS: &str = "roles, channels, tools, arguments, action, reason";
        let mut take = |key: &str| map.shift_remove(key).filter(|value| !value.is_null());
        let roles = take("roles")
            .map(|value| list("roles", value))
            .transpose()?;
        let roles = roles
            .map(|names| names.iter().map(|name| role(name)).collect())
            .transpose()?;
        let channels = take("channels")
            .map(|value| list("channels", value))
            .transpose()?;
        let tools = take("tools")
            .map(|value| list("tools", value))
            .transpose()?;
        let tools = tools.map(|tools| tools.iter().map(|tool| normalize_tool_name(tool)).collect());
        let arguments = match take("arguments") {
            None => Vec::new(),
            Some(Value::Object(patterns)) => {
                let pattern = |(name, pattern): (String, Value)| match text(&pattern) {
                    Some(pattern) => Ok((name, pattern)),
                    None => Err(format!("the pattern of argument `{name}` must be text")),
                };
                patterns
                    .into_iter()
                    .map(pattern)
                    .collect::<Result<_, _>>()?
            }
            Some(_) => return Err("`arguments` must be a map of name to pattern".to_owned()),
        };
        let action = take("action").as_ref().and_then(text);
        let action = action.and_then(|name| {
            PolicyAction::ALL
                .into_iter()
                .find(|action| action.name() == name)
        });
        let action = action.ok_or("`action` must be one of allow, ask, deny")?;
        let reason = take("reason")
            .map(|value| text(&value).ok_or("`reason` must be text"))
            .transpose()?;
        match map.keys().next() {
            Some(unknown) => Err(format!("there is no `{unknown}`; a rule has {KEYS}")),
            None => Ok(Self {
                number,
                origin,
                roles,
                channels,
                tools,
                arguments,
                action,
                reason,
            }),
        }
    }

    /// Whether it is about that call.
    pub(super) fn fits(&self, sender: &Sender, tool: &str, arguments: &Map<String, Value>) -> bool {
        let any = |patterns: &Option<Vec<String>>, text: &str| {
            patterns.as_ref().is_none_or(|all| {
                all.iter()
                    .any(|pattern| glob::matches(pattern, text, |_| true))
            })
        };
        self.roles
            .as_ref()
            .is_none_or(|roles| roles.contains(&sender.role))
            && any(&self.channels, &sender.channel)
            && any(&self.tools, &normalize_tool_name(tool))
            && self.arguments.iter().all(|(name, pattern)| {
                arguments
                    .get(name)
                    .is_some_and(|value| self.argument_fits(name, pattern, value))
            })
    }

    /// A rule that allows must be sure of all it lets through, one that restricts need only suspect.
    fn argument_fits(&self, name: &str, pattern: &str, value: &Value) -> bool {
        if self.action != PolicyAction::Allow {
            return matches_any_text(pattern, value);
        }
        let Some(text) = text(value) else {
            return false;
        };
        let climbs = text.contains("..") && !pattern.contains("..");
        let is_shell = matches!(name, "cmd" | "command");
        !climbs && glob::matches(pattern, &text, |c| !is_shell || is_harmless_in_shell(c))
    }

    /// Why it is about no call of any of these tools: most likely something is misspelled.
    pub fn unmatchable_reason(&self, tools: &[&ToolSpec]) -> Option<String> {
        let named = |pattern: &str| {
            tools
                .iter()
                .filter(move |spec| {
                    glob::matches(pattern, &normalize_tool_name(&spec.name), |_| true)
                })
                .collect::<Vec<_>>()
        };
        let patterns: Vec<&str> = match &self.tools {
            Some(patterns) => patterns.iter().map(String::as_str).collect(),
            None => vec!["*"],
        };
        if let Some(pattern) = patterns.iter().find(|pattern| named(pattern).is_empty()) {
            return Some(format!("there is no tool `{pattern}`"));
        }
        let about: Vec<_> = patterns.into_iter().flat_map(named).collect();
        let has = |name: &str| {
            about
                .iter()
                .any(|spec| spec.parameters().iter().any(|(known, _)| *known == name))
        };
        let (name, _) = self.arguments.iter().find(|(name, _)| !has(name))?;
        let known = match about.as_slice() {
            [spec] => {
                let there: Vec<&str> = spec
                    .parameters()
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect();
                format!("; `{}` has {}", spec.name, there.join(", "))
            }
            _ => String::new(),
        };
        Some(format!(
            "no tool that it is about has an argument `{name}`{known}"
        ))
    }

    /// The rule in one line.
    pub fn summary(&self) -> String {
        let list = |all: &Option<Vec<String>>, none: &str| {
            all.as_ref().map_or(none.to_owned(), |all| all.join(", "))
        };
        let roles = self
            .roles
            .as_ref()
            .map(|roles| roles.iter().map(|role| role.name().to_owned()).collect());
        let mut line = format!("{} {}", self.action.name(), list(&self.tools, "*"));
        if !self.arguments.is_empty() {
            let pairs: Vec<_> = self
                .arguments
                .iter()
                .map(|(name, pattern)| format!("{name}={pattern}"))
                .collect();
            let _ = write!(line, " ({})", pairs.join(", "));
        }
        let _ = write!(line, " for {}", list(&roles, "everybody"));
        if self.channels.is_some() {
            let _ = write!(line, " in {}", list(&self.channels, ""));
        }
        match &self.reason {
            Some(reason) => format!("{line}: {reason}"),
            None => line,
        }
    }
}

/// Whether the pattern fits the value, or any text within it.
fn matches_any_text(pattern: &str, value: &Value) -> bool {
    let inside = match value {
        Value::Array(items) => items.iter().any(|item| matches_any_text(pattern, item)),
        Value::Object(map) => map.values().any(|item| matches_any_text(pattern, item)),
        _ => false,
    };
    let whole = || text(value).unwrap_or_else(|| value.to_string());
    inside || glob::matches(pattern, &whole(), |_| true)
}

/// What a wildcard may stand for in an allowed shell command: nothing that could start another one.
fn is_harmless_in_shell(c: char) -> bool {
    c.is_alphanumeric() || " _-./:=@,+%".contains(c)
}

/// A tool name without its spelling: the model writes `fs_read` for `fs.read`.
fn normalize_tool_name(tool: &str) -> String {
    tool.to_lowercase().replace('_', ".")
}

fn role(name: &str) -> Result<Role, String> {
    Role::from_name(name)
        .ok_or_else(|| format!("there is no role `{name}`; roles are owner, member, guest"))
}

/// One text or several.
fn list(key: &str, value: Value) -> Result<Vec<String>, String> {
    let items = match value {
        Value::Array(items) => items,
        single => vec![single],
    };
    let texts: Option<Vec<_>> = items.iter().map(text).collect();
    texts
        .filter(|texts| !texts.is_empty() && texts.iter().all(|text| !text.trim().is_empty()))
        .ok_or_else(|| format!("`{key}` must be a list of texts with at least one"))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
