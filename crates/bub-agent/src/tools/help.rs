//! The command `help`.

use std::{fmt::Write, sync::Arc};

use bub_kernel::{
    Error, Result, Sender, Tool, ToolContext, ToolExposure, ToolSpec, command_line, command_prefix,
    tool,
};
use bub_settings::closest_match;
use serde_json::Value;

use super::names::{has_name, parameter_list};

/// The commands that only `bub chat` has, with their descriptions.
pub const CHAT_COMMANDS: [(&str, &str); 4] = [
    ("thinking", "Show or hide model reasoning"),
    (
        "output",
        "Show the complete output of the last tool call (also Ctrl-O)",
    ),
    (
        "copy",
        "Copy the last answer to the clipboard, if the terminal allows it",
    ),
    ("exit", "Leave the chat (same as quit)"),
];

/// Show this help, or the description and the arguments of one command or tool
#[tool(crate = bub_kernel, command_only, read_only)]
pub async fn help(
    context: &ToolContext,
    /// A command or tool
    #[default("")]
    name: String,
) -> Result<String> {
    let tools = context.turn.framework().current_tools();
    let is_at_terminal = *context.turn.sender() == Sender::terminal();
    let chat_commands = CHAT_COMMANDS.iter().filter(|_| is_at_terminal);
    let prefix = command_prefix();
    let name = name.trim().trim_start_matches('/');
    let name = command_line(name).unwrap_or(name);
    if !name.is_empty() {
        let chat_command = chat_commands.clone().find(|(command, _)| *command == name);
        if let Some((command, about)) = chat_command {
            return Ok(format!("{prefix}{command}\n{about}"));
        }
        if let Some(tool) = tools.iter().find(|tool| has_name(tool.spec(), name)) {
            return Ok(tool_help(tool.spec()));
        }
        let names = tools.iter().map(|tool| tool.spec().name.as_str());
        let hint = match closest_match(name, names) {
            Some(similar) => format!(", did you mean `{similar}`?"),
            None => format!("; type `{prefix}help` to list the commands"),
        };
        return Err(Error::not_found(format!("unknown command `{name}`{hint}")));
    }
    let mut text = help_text(&tools);
    if is_at_terminal {
        text.push_str("\n\nIn `bub chat`:");
        for (command, about) in chat_commands {
            let _ = write!(text, "\n  {prefix}{command}  {about}");
        }
    }
    Ok(text)
}

/// Returns the description of a tool and its arguments.
fn tool_help(spec: &ToolSpec) -> String {
    let mut text = format!("{}{}\n{}", command_prefix(), spec.name, spec.description);
    let properties = spec.parameters.get("properties");
    for (name, is_required) in spec.parameters() {
        let schema = properties.and_then(|properties| properties.get(name));
        let field = |key: &str| schema.and_then(|schema| schema.get(key));
        let about = field("description").and_then(Value::as_str);
        let _ = write!(text, "\n  {name}");
        match field("default").filter(|value| !value.is_null() && **value != "") {
            _ if is_required => text.push_str(" (required)"),
            Some(default) => {
                let _ = write!(text, " (default: {default})");
            }
            None => text.push_str(" (optional)"),
        }
        if let Some(about) = about {
            let _ = write!(text, "  {about}");
        }
    }
    text
}

/// Returns the help text for comma commands: all commands and tools with their arguments.
pub fn help_text(tools: &[Arc<dyn Tool>]) -> String {
    let prefix = command_prefix();
    let prefix_name = match prefix {
        "," => "a comma",
        prefix => &format!("`{prefix}`"),
    };
    let mut text = format!(
        "Lines that start with {prefix_name} are commands: `{prefix}name value key=value`.\n\
         Anything else after it runs in the shell: `{prefix}ls -la`.\n\
         The model does not see the output, unless you write `{prefix}!` instead: `{prefix}!ls -la`.\n\
         `{prefix}help NAME` describes one command; `{prefix}diff` shows what changed in a Git repository.\n"
    );
    for (title, is_command) in [
        ("Commands", true),
        ("Tools (also available to the model)", false),
    ] {
        let mut specs = tools
            .iter()
            .map(|tool| tool.spec())
            .filter(|spec| (spec.exposure == ToolExposure::Command) == is_command)
            .peekable();
        if specs.peek().is_some() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{title}:\n");
        }
        for spec in specs {
            let mut arguments = parameter_list(spec);
            if !arguments.is_empty() {
                arguments = format!("({arguments})");
            }
            let first = spec.description.lines().next().unwrap_or_default();
            let first = first.split(". ").next().unwrap_or_default();
            let first = first.trim_end_matches('.');
            let line = format!("  {prefix}{}{arguments}  {first}", spec.name);
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text.trim_end().to_owned()
}
