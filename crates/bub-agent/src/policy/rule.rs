//! One configured rule of the policy.

use std::fmt::Write;

use bub_kernel::{Role, Sender, ToolSpec};
use bub_settings::SettingSource;
use serde_json::{Map, Value};

use super::glob;

/// The action for a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// Run the call.
    Allow,
    /// Ask a user for approval.
    Ask,
    /// Do not run the call.
    Deny,
}

impl PolicyAction {
    const ALL: [Self; 3] = [Self::Allow, Self::Ask, Self::Deny];

    /// Returns the name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// A policy rule. It matches a call if all its conditions match. A condition that is not set matches every call.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRule {
    /// The position in the list of rules, starting at 1.
    pub number: usize,
    /// The source of the rule.
    pub origin: SettingSource,
    /// The roles that the rule applies to.
    pub roles: Option<Vec<Role>>,
    /// Patterns of the channels that the rule applies to.
    pub channels: Option<Vec<String>>,
    /// Patterns of the tools that the rule applies to.
    pub tools: Option<Vec<String>>,
    /// Arguments that the call must have, with the patterns that their values must match.
    pub arguments: Vec<(String, String)>,
    /// The action for matching calls.
    pub action: PolicyAction,
    /// The reason shown to users and to the model.
    pub reason: Option<String>,
}

impl PolicyRule {
    /// Parses a rule from the settings. `number` is its position in the list. The error says what is invalid.
    pub(super) fn from_map(
        mut map: Map<String, Value>,
        number: usize,
        origin: SettingSource,
    ) -> Result<Self, String> {
        const KEYS: &str = "roles, channels, tools, arguments, action, reason";
        let mut take = |key: &str| map.shift_remove(key).filter(|value| !value.is_null());
        let roles = take("roles")
            .map(|value| parse_list("roles", value))
            .transpose()?;
        let roles = roles
            .map(|names| names.iter().map(|name| parse_role(name)).collect())
            .transpose()?;
        let channels = take("channels")
            .map(|value| parse_list("channels", value))
            .transpose()?;
        let tools = take("tools")
            .map(|value| parse_list("tools", value))
            .transpose()?;
        let tools = tools.map(|tools| tools.iter().map(|tool| normalize_tool_name(tool)).collect());
        let arguments = match take("arguments") {
            None => Vec::new(),
            Some(Value::Object(patterns)) => {
                let pattern = |(name, pattern): (String, Value)| match scalar_text(&pattern) {
                    Some(pattern) => Ok((name, pattern)),
                    None => Err(format!("the pattern of argument `{name}` must be a string")),
                };
                patterns
                    .into_iter()
                    .map(pattern)
                    .collect::<Result<_, _>>()?
            }
            Some(_) => return Err("`arguments` must be a map of name to pattern".to_owned()),
        };
        let action = take("action").as_ref().and_then(scalar_text);
        let action = action.and_then(|name| {
            PolicyAction::ALL
                .into_iter()
                .find(|action| action.name() == name)
        });
        let action = action.ok_or("`action` must be one of allow, ask, deny")?;
        let reason = take("reason")
            .map(|value| scalar_text(&value).ok_or("`reason` must be a string"))
            .transpose()?;
        match map.keys().next() {
            Some(unknown) => Err(format!("unknown key `{unknown}`; valid keys: {KEYS}")),
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

    /// Returns whether the rule matches a call.
    pub(super) fn matches(
        &self,
        sender: &Sender,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> bool {
        let matches_any = |patterns: &Option<Vec<String>>, text: &str| {
            patterns.as_ref().is_none_or(|all| {
                all.iter()
                    .any(|pattern| glob::matches(pattern, text, |_| true))
            })
        };
        self.roles
            .as_ref()
            .is_none_or(|roles| roles.contains(&sender.role))
            && matches_any(&self.channels, &sender.channel)
            && matches_any(&self.tools, &normalize_tool_name(tool))
            && self.arguments.iter().all(|(name, pattern)| {
                arguments
                    .get(name)
                    .is_some_and(|value| self.argument_matches(name, pattern, value))
            })
    }

    /// Returns whether an argument matches a pattern. For `allow`, the complete value must match. For `ask` and `deny`, any
    /// text within the value may match.
    fn argument_matches(&self, name: &str, pattern: &str, value: &Value) -> bool {
        if self.action != PolicyAction::Allow {
            return matches_any_text(pattern, value);
        }
        let Some(text) = scalar_text(value) else {
            return false;
        };
        let has_parent_path = text.contains("..") && !pattern.contains("..");
        let is_shell = matches!(name, "cmd" | "command");
        !has_parent_path && glob::matches(pattern, &text, |c| !is_shell || is_harmless_in_shell(c))
    }

    /// Returns why the rule cannot match any call of these tools, or `None` if it can. The usual reason is a misspelled
    /// name.
    pub fn unmatchable_reason(&self, tools: &[&ToolSpec]) -> Option<String> {
        let matching_tools = |pattern: &str| {
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
        if let Some(pattern) = patterns
            .iter()
            .find(|pattern| matching_tools(pattern).is_empty())
        {
            return Some(format!("unknown tool `{pattern}`"));
        }
        let specs: Vec<_> = patterns.into_iter().flat_map(matching_tools).collect();
        let has_parameter = |name: &str| {
            specs.iter().any(|spec| {
                spec.parameters()
                    .iter()
                    .any(|(parameter, _)| *parameter == name)
            })
        };
        let (name, _) = self
            .arguments
            .iter()
            .find(|(name, _)| !has_parameter(name))?;
        let hint = match specs.as_slice() {
            [spec] => {
                let names: Vec<&str> = spec
                    .parameters()
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect();
                format!("; arguments of `{}`: {}", spec.name, names.join(", "))
            }
            _ => String::new(),
        };
        Some(format!("no matching tool has an argument `{name}`{hint}"))
    }

    /// Returns the rule in one line, such as `ask: bash, all roles`.
    pub fn summary(&self) -> String {
        let list = |items: &Option<Vec<String>>, default: &str| {
            items
                .as_ref()
                .map_or(default.to_owned(), |items| items.join(", "))
        };
        let roles = self
            .roles
            .as_ref()
            .map(|roles| roles.iter().map(|role| role.name().to_owned()).collect());
        let mut line = format!("{}: {}", self.action.name(), list(&self.tools, "*"));
        if !self.arguments.is_empty() {
            let pairs: Vec<_> = self
                .arguments
                .iter()
                .map(|(name, pattern)| format!("{name}={pattern}"))
                .collect();
            let _ = write!(line, " ({})", pairs.join(", "));
        }
        let _ = write!(line, ", {}", list(&roles, "all roles"));
        if self.channels.is_some() {
            let _ = write!(line, ", in {}", list(&self.channels, ""));
        }
        match &self.reason {
            Some(reason) => format!("{line}: {reason}"),
            None => line,
        }
    }
}

/// Returns whether the pattern matches the value or any text in it.
fn matches_any_text(pattern: &str, value: &Value) -> bool {
    let matches_item = match value {
        Value::Array(items) => items.iter().any(|item| matches_any_text(pattern, item)),
        Value::Object(map) => map.values().any(|item| matches_any_text(pattern, item)),
        _ => false,
    };
    let complete = || scalar_text(value).unwrap_or_else(|| value.to_string());
    matches_item || glob::matches(pattern, &complete(), |_| true)
}

/// Returns whether a wildcard may match `c` in an allowed shell command. Characters that could start another command
/// are excluded.
fn is_harmless_in_shell(c: char) -> bool {
    c.is_alphanumeric() || " _-./:=@,+%".contains(c)
}

/// Returns a tool name in the form used for matching. Models write `fs_read` for `fs.read`.
fn normalize_tool_name(tool: &str) -> String {
    tool.to_lowercase().replace('_', ".")
}

fn parse_role(name: &str) -> Result<Role, String> {
    Role::from_name(name)
        .ok_or_else(|| format!("unknown role `{name}`; available roles: owner, member, guest"))
}

/// Converts a string or a list of strings to a list. Fails if the list is empty.
fn parse_list(key: &str, value: Value) -> Result<Vec<String>, String> {
    let items = match value {
        Value::Array(items) => items,
        single => vec![single],
    };
    let texts: Option<Vec<_>> = items.iter().map(scalar_text).collect();
    texts
        .filter(|texts| !texts.is_empty() && texts.iter().all(|text| !text.trim().is_empty()))
        .ok_or_else(|| format!("`{key}` must be a non-empty list of strings"))
}

/// Returns a string, number or boolean as text, and `None` for other values.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
