//! One configured rule of the policy.

use std::fmt::Write;

use bub_kernel::{Role, Sender, ToolSpec};
use bub_settings::{SettingChoice, SettingSource};
use serde_json::{Map, Value};

use super::glob;

/// The action for a tool call. A stricter action compares greater.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
    SettingChoice,
)]
#[settings(crate = bub_settings)]
#[strum(serialize_all = "snake_case")]
pub enum PolicyAction {
    /// Run the call.
    Allow,
    /// Ask a user for approval.
    Ask,
    /// Do not run the call.
    Deny,
}

impl PolicyAction {
    /// Returns the name of the action in settings and reports.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Tools that only owners may use by default and that change the system. [`PolicyRule::risk`] checks them.
const OWNER_TOOLS: [&str; 5] = ["bash", "fs.write", "fs.edit", "run_code", "subagent"];

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
    /// Arguments with the patterns that their values must match. `None` means that the call must not have the argument.
    pub arguments: Vec<(String, Option<String>)>,
    /// The action for matching calls.
    pub action: PolicyAction,
    /// The roles of users who may approve a matching call. Owners always may.
    pub approvers: Vec<Role>,
    /// The reason shown to users and to the model.
    pub reason: Option<String>,
}

impl PolicyRule {
    /// Creates a rule for these tools. A rule that allows applies to owners only.
    pub(super) fn for_tools(tools: &[String], action: PolicyAction, origin: SettingSource) -> Self {
        Self {
            number: 0,
            origin,
            roles: (action == PolicyAction::Allow).then(|| vec![Role::Owner]),
            channels: None,
            tools: Some(tools.iter().map(|tool| normalize_tool_name(tool)).collect()),
            arguments: Vec::new(),
            action,
            approvers: vec![Role::Owner],
            reason: None,
        }
    }

    /// Parses a rule from the settings. `number` is its position in the list. The error says what is invalid.
    pub(super) fn from_map(
        mut map: Map<String, Value>,
        number: usize,
        origin: SettingSource,
    ) -> Result<Self, String> {
        const KEYS: &str = "roles, channels, tools, arguments, action, approvers, reason";
        let mut take = |key: &str| map.shift_remove(key).filter(|value| !value.is_null());
        let mut take_list = |key: &str| take(key).map(|value| parse_list(key, value)).transpose();
        let mut take_roles = |key: &str| {
            let names = take_list(key)?;
            let roles = names.map(|names| names.iter().map(|name| parse_role(name)).collect());
            roles.transpose()
        };
        let roles: Option<Vec<Role>> = take_roles("roles")?;
        let others: Option<Vec<Role>> = take_roles("approvers")?;
        let channels = take_list("channels")?;
        let tools = take_list("tools")?;
        let tools = tools.map(|tools| tools.iter().map(|tool| normalize_tool_name(tool)).collect());
        let arguments = match take("arguments") {
            None => Vec::new(),
            Some(Value::Object(patterns)) => {
                let pattern = |(name, pattern): (String, Value)| match scalar_text(&pattern) {
                    None if !pattern.is_null() => Err(format!(
                        "the pattern of argument `{name}` must be a string or null"
                    )),
                    pattern => Ok((name, pattern)),
                };
                let patterns: Result<_, String> = patterns.into_iter().map(pattern).collect();
                patterns?
            }
            Some(_) => return Err("`arguments` must be a map of name to pattern".to_owned()),
        };
        let action = take("action").as_ref().and_then(scalar_text);
        let action = action.and_then(|name| name.parse().ok());
        let action = action.ok_or("`action` must be one of allow, ask, deny")?;
        match &others {
            Some(_) if action != PolicyAction::Ask => {
                return Err("`approvers` requires `action: ask`".to_owned());
            }
            Some(roles) if roles.contains(&Role::Guest) => {
                return Err(
                    "`approvers` must not contain guest: guests cannot approve calls".to_owned(),
                );
            }
            _ => {}
        }
        let mut approvers = others.unwrap_or_default();
        if !approvers.contains(&Role::Owner) {
            approvers.insert(0, Role::Owner);
        }
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
                approvers,
                reason,
            }),
        }
    }

    /// Returns whether the rule matches a call.
    pub(super) fn matches(
        &self,
        sender: &Sender,
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
    ) -> bool {
        let matches_any = |patterns: &Option<Vec<String>>, text: &str| {
            let is_match = |pattern: &String| glob::matches(pattern, text, |_| true);
            patterns.as_ref().is_none_or(|all| all.iter().any(is_match))
        };
        let has_argument = |(name, pattern): &(String, Option<String>)| {
            let value = arguments
                .get(tool.argument_name(name))
                .filter(|value| !value.is_null());
            match (value, pattern) {
                (Some(value), Some(pattern)) => self.argument_matches(name, pattern, value),
                (value, pattern) => value.is_none() && pattern.is_none(),
            }
        };
        let roles = self.roles.as_ref();
        roles.is_none_or(|roles| roles.contains(&sender.role))
            && matches_any(&self.channels, &sender.channel)
            && matches_any(&self.tools, &normalize_tool_name(&tool.name))
            && self.arguments.iter().all(has_argument)
    }

    /// Returns whether the rule allows calls with certain arguments, without a wildcard, as the answer `always` does.
    pub(super) fn allows_exact_arguments(&self) -> bool {
        let patterns = self.arguments.iter();
        let mut patterns = patterns.filter_map(|(_, pattern)| pattern.as_deref());
        let has_wildcard = |pattern: &str| pattern.contains(['*', '?']);
        self.action == PolicyAction::Allow
            && patterns.clone().next().is_some()
            && !patterns.any(has_wildcard)
    }

    /// Returns whether an argument matches a pattern. If the rule allows calls, the complete value must match. If it
    /// asks or denies, it is enough that one text in a list or map matches.
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

    /// Returns a problem if a tool pattern or an argument name of the rule fits none of these tools, and `None`
    /// otherwise. The usual cause is a misspelled name.
    pub fn unmatchable_reason(&self, tools: &[&ToolSpec]) -> Option<String> {
        let any_tool = ["*".to_owned()];
        let mut specs: Vec<&ToolSpec> = Vec::new();
        for pattern in self.tools.as_deref().unwrap_or(&any_tool) {
            let is_match =
                |name: &str| glob::matches(pattern, &normalize_tool_name(name), |_| true);
            let count = specs.len();
            specs.extend(tools.iter().filter(|spec| is_match(&spec.name)));
            if specs.len() == count {
                return Some(format!("unknown tool `{pattern}`"));
            }
        }
        let parameters = specs.iter().flat_map(|spec| spec.parameters());
        let names: Vec<&str> = parameters.map(|(name, _)| name).collect();
        let is_alias = |name: &str| specs.iter().any(|spec| spec.argument_name(name) != name);
        let mut arguments = self.arguments.iter();
        let (name, _) =
            arguments.find(|(name, _)| !names.contains(&name.as_str()) && !is_alias(name))?;
        let hint = match specs.as_slice() {
            [spec] => format!("; arguments of `{}`: {}", spec.name, names.join(", ")),
            _ => String::new(),
        };
        Some(format!("no matching tool has an argument `{name}`{hint}"))
    }

    /// Returns why the rule is dangerous, or `None`: it gives members or guests what only owners may do by default.
    pub fn risk(&self) -> Option<String> {
        let covers = |role: Role| {
            self.roles
                .as_ref()
                .is_none_or(|roles| roles.contains(&role))
        };
        let role = [Role::Guest, Role::Member]
            .into_iter()
            .find(|role| covers(*role))?;
        let matches_tool = |tool: &str| {
            let mut patterns = self.tools.iter().flatten();
            self.tools.is_none() || patterns.any(|pattern| glob::matches(pattern, tool, |_| true))
        };
        let is_narrow = |(_, pattern): &(String, Option<String>)| {
            let text = pattern.as_deref().unwrap_or_default();
            text.contains(|c| !matches!(c, '*' | '?'))
        };
        let tool = OWNER_TOOLS.into_iter().find(|tool| matches_tool(tool))?;
        let is_every_tool = self.tools.is_none() || OWNER_TOOLS.into_iter().all(matches_tool);
        let name = role.name();
        match self.action {
            PolicyAction::Allow if is_every_tool && self.arguments.is_empty() => {
                Some(format!("lets every {name} use every tool"))
            }
            PolicyAction::Allow if !self.arguments.iter().any(is_narrow) => {
                Some(format!("lets every {name} use `{tool}` with any arguments"))
            }
            PolicyAction::Ask if self.roles.is_some() && self.approvers.contains(&Role::Member) => {
                Some(format!("lets members approve `{tool}` for a {name}"))
            }
            _ => None,
        }
    }

    /// Returns the rule in one line, such as `ask: bash, all roles`.
    pub fn summary(&self) -> String {
        let list = |items: &Option<Vec<String>>, default: &str| {
            let items = items.as_ref().map(|items| items.join(", "));
            items.unwrap_or_else(|| default.to_owned())
        };
        let roles = self.roles.as_ref();
        let roles = roles.map(|roles| roles.iter().map(|role| role.name().to_owned()).collect());
        let mut line = format!("{}: {}", self.action.name(), list(&self.tools, "*"));
        if !self.arguments.is_empty() {
            let pairs = self.arguments.iter();
            let pairs: Vec<_> = pairs
                .map(|(name, pattern)| match pattern {
                    Some(pattern) => format!("{name}={pattern}"),
                    None => format!("no {name}"),
                })
                .collect();
            let _ = write!(line, " ({})", pairs.join(", "));
        }
        let _ = write!(line, ", {}", list(&roles, "all roles"));
        if self.channels.is_some() {
            let _ = write!(line, ", in {}", list(&self.channels, ""));
        }
        if self.action == PolicyAction::Ask {
            let names: Vec<_> = self.approvers.iter().map(|role| role.name()).collect();
            let _ = write!(line, ", approved by {}", names.join(" or "));
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

/// Returns whether a wildcard may match `c` in a pattern for shell commands, if the action of the rule is `allow`.
/// Characters that could start another command are excluded.
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
