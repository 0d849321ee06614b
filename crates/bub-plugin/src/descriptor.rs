//! The descriptor of an external plugin: its hooks, tools, channels and commands.
//!
//! bub requests the descriptor when the plugin is added and stores it. Later, bub registers the plugin without starting
//! it.

use std::{
    collections::{HashMap, HashSet},
    iter,
    path::PathBuf,
    time::Duration,
};

use bub_kernel::{
    CommandArg, CommandSpec, Error, Result, ToolExposure,
    hooks::{HOOKS, HookOptions, HookPoint as _, point},
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    command,
    manifest::{SettingDecl, has_control_chars},
    wire_hook::unsupported_reason,
};

/// Time that the kernel waits for a hook beyond the timeout of the plugin's host, which then ends the process.
const KERNEL_MARGIN: Duration = Duration::from_secs(10);

/// Highest version of the plugin protocol that this version of bub supports.
pub const PROTOCOL_VERSION: u32 = 2;
/// Lowest version of the plugin protocol that this version of bub supports.
pub const MIN_PROTOCOL_VERSION: u32 = 1;

/// The hooks, tools, channels and commands of a plugin, as its response to `initialize` lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Descriptor {
    /// Version of the plugin protocol that the plugin uses.
    pub protocol: u32,
    /// Version of the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// One-line description of the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Hooks that the plugin implements.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "deserialize_hooks"
    )]
    pub hooks: Vec<HookDecl>,
    /// Tools that the plugin provides, in the format of MCP (Model Context Protocol).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDecl>,
    /// Channels that the plugin provides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelDecl>,
    /// Commands that the plugin adds to the command line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<CommandSpec>,
    /// Directories of skills that the plugin brings. Since version 2.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<PathBuf>,
    /// What a plugin needs that has no manifest. Since version 2.
    #[serde(flatten)]
    pub needs: PluginNeeds,
}

/// What a plugin needs. `bub install` writes it into the manifest that it generates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PluginNeeds {
    /// Settings of the plugin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingDecl>,
    /// Names of environment variables that the plugin reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Names of files in bub's home that the plugin uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub home_files: Vec<String>,
}

/// A hook that a plugin implements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HookDecl {
    /// Name of the hook.
    pub name: String,
    /// Names of the arguments that the plugin receives. `None` means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Whether a tool call proceeds if the hook fails. Only `before_tool_call` has this option.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observe_only: bool,
    /// `first` or `last`: the hook runs before or after those of all other plugins. Since version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Timeout of the hook, if it needs longer than the default. Since version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
}

impl HookDecl {
    /// Returns whether a failure of the hook denies a tool call.
    pub(crate) fn is_guard(&self) -> bool {
        // Without the environment of a session, its commands would run on this machine.
        self.name == point::ProvideEnvironment::SPEC.name
            || (self.name == point::BeforeToolCall::SPEC.name && !self.observe_only)
    }

    /// Returns the timeout that the plugin declares.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let seconds = self.timeout_seconds.filter(|seconds| *seconds > 0.0)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Returns how the kernel calls the hook. `time_limit` is the timeout of a call.
    pub(crate) fn options(&self, time_limit: Option<Duration>) -> HookOptions {
        let mut options = HookOptions::default();
        options.order = self
            .order
            .as_deref()
            .and_then(|order| order.parse().ok())
            .unwrap_or_default();
        // The kernel must not give up before the host of the plugin does.
        options.time_limit = time_limit.map(|limit| limit + KERNEL_MARGIN);
        options.observe_only = self.observe_only;
        options
    }
}

/// Deserializes hooks. A hook without options can be its name only.
pub(crate) fn deserialize_hooks<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<HookDecl>, D::Error> {
    let hooks = Vec::<Value>::deserialize(from)?.into_iter();
    let hooks = hooks.map(|hook| match hook {
        Value::String(name) => Ok(HookDecl {
            name,
            ..HookDecl::default()
        }),
        other => HookDecl::deserialize(other).map_err(D::Error::custom),
    });
    hooks.collect()
}

/// A tool that a plugin provides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolDecl {
    /// Name of the tool, which may contain dots.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the result, for code that calls the tool in code mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Annotations of the tool, as in MCP. bub reads `readOnlyHint` and its own annotations `exposure`, `deferred` and
    /// `commandOnly`, which means the exposure `command`.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub annotations: Value,
}

impl ToolDecl {
    /// Returns the name that the model uses: dots become underscores.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// Returns what is wrong with the schema of the arguments, if anything. With an invalid schema, the provider would
    /// reject every model call.
    fn schema_problem(&self) -> Option<&'static str> {
        let Some(schema) = self.input_schema.as_object() else {
            return Some(
                "`inputSchema` is missing; set it to a JSON Schema with the type `object`",
            );
        };
        let is_schema = |schema: &Value| schema.is_object() || schema.is_boolean();
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Some("`type` of `inputSchema` must be \"object\"");
        }
        let has_valid_properties = match schema.get("properties") {
            None => true,
            Some(Value::Object(properties)) => properties.values().all(is_schema),
            Some(_) => false,
        };
        (!has_valid_properties).then_some("`properties` of `inputSchema` must be a map of schemas")
    }

    /// Returns who can call the tool.
    pub(crate) fn exposure(&self) -> ToolExposure {
        let name = self.annotations.get("exposure").and_then(Value::as_str);
        let exposure = name.and_then(|name| name.parse().ok());
        match exposure {
            _ if self.has_annotation("commandOnly") => ToolExposure::Command,
            exposure => exposure.unwrap_or_default(),
        }
    }

    /// Returns whether an annotation of this name is true.
    pub(crate) fn has_annotation(&self, name: &str) -> bool {
        self.annotations.get(name) == Some(&Value::Bool(true))
    }
}

/// A channel that a plugin provides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelDecl {
    /// Name of the channel.
    pub name: String,
    /// Whether messages that arrive close together are collected into one turn.
    pub debounce: bool,
    /// Whether the channel receives the stream events of running turns.
    pub events: bool,
    /// Whether the channel only starts and stops a background service. Such a channel sends and receives no messages.
    pub lifecycle: bool,
}

impl Descriptor {
    /// Checks the descriptor.
    ///
    /// # Errors
    ///
    /// Fails if the protocol version is not supported, or if a hook, tool, channel or command is invalid.
    pub fn check<'a>(&'a self) -> Result<()> {
        if !(MIN_PROTOCOL_VERSION..=PROTOCOL_VERSION).contains(&self.protocol) {
            return Err(Error::config(format!(
                "unsupported protocol version {}: this version of bub supports {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}; install a matching version of the plugin",
                self.protocol
            )));
        }
        for hook in &self.hooks {
            check_hook(hook)?;
        }
        let arg_texts = |arg: &'a CommandArg| iter::once(&arg.help).chain(&arg.default);
        let command_texts = |command: &'a CommandSpec| {
            iter::once(&command.about).chain(command.args.iter().flat_map(arg_texts))
        };
        let texts = self.version.iter().chain(&self.description);
        let mut texts = texts.chain(self.commands.iter().flat_map(command_texts));
        if texts.any(|text| has_control_chars(text)) {
            return Err(Error::config(
                "control characters in the version, the description or a command; remove them from the descriptor",
            ));
        }
        self.check_tools()?;
        let channels = self.channels.iter();
        let channels = channels.map(|channel| ("channel", &channel.name));
        let commands = self.commands.iter();
        let commands = commands.map(|command| ("command", &command.name));
        let names = channels.chain(commands);
        for (kind, name) in names.clone() {
            // A channel may be named after the part of a plugin that it belongs to, such as `mcp.lifecycle`.
            let checked = if kind == "channel" {
                name.replace('.', "-")
            } else {
                name.clone()
            };
            if !command::is_valid_name(&checked) {
                return Err(Error::config(format!(
                    "invalid {kind} name `{name}`: expected lower-case letters, digits, - and _, starting with a letter"
                )));
            }
        }
        let tools = self.tools.iter().map(|tool| ("tool", &tool.name));
        let mut seen = HashSet::new();
        if let Some((kind, name)) = names.chain(tools).find(|entry| !seen.insert(*entry)) {
            return Err(Error::config(format!(
                "duplicate {kind} `{name}`: declare each name once"
            )));
        }
        self.commands.iter().try_for_each(command::check_command)
    }

    pub(crate) fn check_tools(&self) -> Result<()> {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        for tool in &self.tools {
            let name = &tool.name;
            if name.is_empty() || name.len() > 64 || !name.chars().all(is_valid) {
                return Err(Error::config(format!(
                    "invalid tool name `{name}`: expected up to 64 letters, digits, ., _ and -"
                )));
            }
            if let Some(reason) = tool.schema_problem() {
                return Err(Error::config(format!("tool `{name}`: {reason}")));
            }
        }
        let mut seen: HashMap<String, &String> = HashMap::new();
        for tool in &self.tools {
            let (name, other) = (&tool.name, seen.insert(tool.model_name(), &tool.name));
            if let Some(other) = other.filter(|other| *other != name) {
                return Err(Error::config(format!(
                    "tools `{other}` and `{name}` have the same name for the model; rename one of them"
                )));
            }
        }
        Ok(())
    }

    /// Returns whether the plugin is a guard: it implements `before_tool_call` without `observe_only`. If
    /// `before_tool_call` of a guard fails, bub denies the tool call.
    pub fn is_guard(&self) -> bool {
        self.hooks.iter().any(HookDecl::is_guard)
    }
}

fn check_hook(hook: &HookDecl) -> Result<()> {
    let name = hook.name.as_str();
    if let Some(instead) = unsupported_reason(name) {
        return Err(Error::config(format!(
            "unsupported hook `{name}`: {instead}"
        )));
    }
    let Some(spec) = HOOKS.iter().find(|spec| spec.name == name) else {
        let names = HOOKS.iter().map(|spec| spec.name);
        let hint = match bub_settings::closest_match(name, names) {
            Some(closest) => format!("did you mean `{closest}`?"),
            None => "run `bub hooks --all` to list hooks".to_owned(),
        };
        return Err(Error::config(format!("unknown hook `{name}`; {hint}")));
    };
    for arg in hook.args.iter().flatten() {
        if spec.args.iter().all(|declared| declared.name != arg) {
            let available: Vec<_> = spec.args.iter().map(|declared| declared.name).collect();
            let available = available.join(", ");
            return Err(Error::config(format!(
                "unknown argument `{arg}` of hook `{name}`; available arguments: {available}"
            )));
        }
    }
    if let Some(order) = hook
        .order
        .as_deref()
        .filter(|order| !matches!(*order, "first" | "last"))
    {
        return Err(Error::config(format!(
            "hook `{name}`: invalid `order` `{order}`: expected `first` or `last`"
        )));
    }
    if hook.observe_only && name != "before_tool_call" {
        return Err(Error::config(format!(
            "hook `{name}` cannot be `observe_only`: only `before_tool_call` can; remove `observe_only`"
        )));
    }
    Ok(())
}
