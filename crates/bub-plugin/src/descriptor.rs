//! What a plugin says about itself: asked for once, when it is added, so that nothing has to be started to know it.

use std::collections::{HashMap, HashSet};

use bub_kernel::{
    CommandArg, CommandSpec, Error, Result,
    hooks::{HOOKS, HookPoint as _, point},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{command, manifest::has_control_chars, wire_hook::UNSUPPORTED_HOOKS};

/// The version of the protocol.
pub const PROTOCOL_VERSION: u32 = 1;

/// What a plugin implements and provides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Descriptor {
    /// The version of the protocol it speaks.
    pub protocol: u32,
    /// Its own version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it does, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The hooks it implements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookDecl>,
    /// The tools it has, in MCP's shape.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDecl>,
    /// The channels it serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelDecl>,
    /// The commands it adds to the command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<CommandSpec>,
}

/// A hook that is implemented.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "HookDeclForm")]
pub struct HookDecl {
    /// Its name.
    pub name: String,
    /// The arguments it wants; all of them unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Whether its failure decides nothing; for `before_tool_call`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub observe_only: bool,
}

/// A name alone will do.
#[derive(Deserialize)]
#[serde(untagged)]
enum HookDeclForm {
    Name(String),
    Full {
        name: String,
        #[serde(default)]
        args: Option<Vec<String>>,
        #[serde(default)]
        observe_only: bool,
    },
}

impl From<HookDeclForm> for HookDecl {
    fn from(form: HookDeclForm) -> Self {
        match form {
            HookDeclForm::Name(name) => Self {
                name,
                ..Self::default()
            },
            HookDeclForm::Full {
                name,
                args,
                observe_only,
            } => Self {
                name,
                args,
                observe_only,
            },
        }
    }
}

/// A tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolDecl {
    /// Its name, with dots.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// Hints, of which `readOnlyHint` matters here.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub annotations: Value,
}

impl ToolDecl {
    /// The name as the model sees it.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// What is wrong with the schema of its arguments: a provider that refuses it refuses every turn.
    fn wrong_schema(&self) -> Option<&'static str> {
        let Some(schema) = self.input_schema.as_object() else {
            return Some("no `inputSchema`");
        };
        let is_schema = |schema: &Value| schema.is_object() || schema.is_boolean();
        let properties = schema.get("properties");
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Some("an `inputSchema` whose `type` is not \"object\"");
        }
        let is_fine = |properties: &Value| {
            properties
                .as_object()
                .is_some_and(|properties| properties.values().all(is_schema))
        };
        let is_wrong = properties.is_some_and(|properties| !is_fine(properties));
        is_wrong.then_some("an `inputSchema` whose `properties` are no map of schemas")
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.annotations
            .get("readOnlyHint")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    pub(crate) fn is_for_people(&self) -> bool {
        self.annotations
            .get("commandOnly")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }
}

/// A channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelDecl {
    /// Its name.
    pub name: String,
    /// Whether messages in quick succession are collected into one.
    pub debounce: bool,
    /// Whether it wants each event of a running answer.
    pub events: bool,
    /// Whether it only works in the background.
    pub lifecycle: bool,
}

impl Descriptor {
    /// Checks what a plugin says about itself.
    pub fn check(&self) -> Result<()> {
        if self.protocol != PROTOCOL_VERSION {
            return Err(Error::config(format!(
                "it speaks version {} of the protocol, this bub version {PROTOCOL_VERSION}; get a version of the plugin for this bub",
                self.protocol
            )));
        }
        for hook in &self.hooks {
            check_hook(hook)?;
        }
        let of_command = |own: &CommandSpec| {
            let arg = |arg: &CommandArg| {
                has_control_chars(&arg.help)
                    || arg.default.as_deref().is_some_and(has_control_chars)
            };
            has_control_chars(&own.about) || own.args.iter().any(arg)
        };
        let mut texts = [&self.version, &self.description].into_iter().flatten();
        if texts.any(|text| has_control_chars(text)) || self.commands.iter().any(of_command) {
            return Err(Error::config(
                "there are control characters in what it says about itself",
            ));
        }
        for tool in &self.tools {
            let is_name = |name: &str| {
                let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                !name.is_empty() && name.len() <= 64 && name.chars().all(is_fine)
            };
            if !is_name(&tool.name) {
                return Err(Error::config(format!(
                    "`{}` is no name for a tool",
                    tool.name
                )));
            }
            if let Some(reason) = tool.wrong_schema() {
                return Err(Error::config(format!(
                    "the tool `{}` has {reason}",
                    tool.name
                )));
            }
        }
        let mut seen: HashMap<String, &str> = HashMap::new();
        for tool in &self.tools {
            if let Some(other) = seen
                .insert(tool.model_name(), &tool.name)
                .filter(|other| *other != tool.name)
            {
                let name = &tool.name;
                return Err(Error::config(format!(
                    "the tools `{other}` and `{name}` are one to the model"
                )));
            }
        }
        let names = self
            .channels
            .iter()
            .map(|channel| ("channel", &channel.name));
        let names = names.chain(
            self.commands
                .iter()
                .map(|command| ("command", &command.name)),
        );
        for (what, name) in names.clone() {
            if !command::is_plain(name) {
                return Err(Error::config(format!(
                    "`{name}` is no name for a {what}: lower-case letters, digits, - and _, a letter first"
                )));
            }
        }
        let tools = self.tools.iter().map(|tool| ("tool", &tool.name));
        let mut seen = HashSet::new();
        if let Some((what, name)) = names.chain(tools).find(|entry| !seen.insert(*entry)) {
            return Err(Error::config(format!("it has two of the {what} `{name}`")));
        }
        self.commands.iter().try_for_each(command::check)
    }

    /// Whether tool calls wait for its word: one that cannot give it denies.
    pub fn is_guard(&self) -> bool {
        self.hooks
            .iter()
            .any(|hook| hook.name == point::BeforeToolCall::SPEC.name && !hook.observe_only)
    }
}

fn check_hook(hook: &HookDecl) -> Result<()> {
    let name = hook.name.as_str();
    if let Some((_, instead)) = UNSUPPORTED_HOOKS.iter().find(|(known, _)| *known == name) {
        return Err(Error::config(format!(
            "it cannot implement {name}: {instead}"
        )));
    }
    let Some(spec) = HOOKS.iter().find(|spec| spec.name == name) else {
        let closest = bub_settings::closest(name, HOOKS.iter().map(|spec| spec.name));
        let hint = closest
            .map(|closest| format!("; did it mean `{closest}`?"))
            .unwrap_or_default();
        return Err(Error::config(format!("there is no hook `{name}`{hint}")));
    };
    for arg in hook.args.iter().flatten() {
        if spec.args.iter().all(|known| known.name != arg) {
            let known: Vec<_> = spec.args.iter().map(|known| known.name).collect();
            let known = known.join(", ");
            return Err(Error::config(format!(
                "{name} has no argument `{arg}`; there are: {known}"
            )));
        }
    }
    if hook.observe_only && name != "before_tool_call" {
        return Err(Error::config(format!(
            "{name} cannot be observe_only: only before_tool_call decides by failing"
        )));
    }
    Ok(())
}
