//! The command `help`.

use std::{fmt::Write, sync::Arc};

use bub_kernel::{Sender, Tool, ToolContext, ToolExposure, tool};

use super::names::parameter_list;

/// Show this help
#[tool(crate = bub_kernel, command_only, read_only)]
pub async fn help(context: &ToolContext) -> String {
    let mut text = help_text(&context.turn.framework().current_tools());
    if *context.turn.sender() == Sender::terminal() {
        text.push_str(
            "\n\nIn `bub chat`:\n  ,thinking  Show or hide model reasoning\n  ,exit  Leave the chat (same as ,quit)",
        );
    }
    text
}

/// Returns the help text for comma commands: all commands and tools with their arguments.
pub fn help_text(tools: &[Arc<dyn Tool>]) -> String {
    let mut text = "Lines that start with a comma are commands: `,name value key=value`.\n\
                    Anything else after the comma runs in the shell: `,ls -la`.\n"
        .to_owned();
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
            let line = format!("  ,{}{arguments}  {first}", spec.name);
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text.trim_end().to_owned()
}
