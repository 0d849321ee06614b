//! What a typed line means: text for the model, a command of the agent, or a command that the chat runs itself.

use bub_kernel::{command_line, command_prefix};
use bub_settings::closest_match;

use crate::editor::CompletionItem;

/// A command that the chat runs itself, instead of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatCommand {
    /// `,quit` or `,exit`: leaves the chat.
    Quit,
    /// `,thinking`: shows or hides reasoning.
    Thinking,
    /// `,output`: shows the complete output of the latest tool call whose output was shortened.
    Output,
    /// `,copy`: copies the latest answer to the clipboard of the terminal.
    Copy,
}

impl ChatCommand {
    /// Parses a line. A command with arguments is one for the agent.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        match command_line(line)? {
            "quit" | "exit" => Some(Self::Quit),
            "thinking" => Some(Self::Thinking),
            "output" => Some(Self::Output),
            "copy" => Some(Self::Copy),
            _ => None,
        }
    }
}

/// Returns the hint that says how to leave the chat.
pub(crate) fn leave_hint() -> String {
    let prefix = command_prefix();
    format!("press Ctrl-C again or type {prefix}quit to leave")
}

/// Resolves a line that starts with a slash: `/name` is the command `,name`. Other lines stay as they are. The error
/// says that the line names no command; it must not be sent before the user has confirmed it.
///
/// # Errors
///
/// Fails if the line starts with a slash and names no command.
pub fn resolve_slash(line: &str, commands: &[CompletionItem]) -> Result<String, String> {
    let Some(rest) = line
        .strip_prefix('/')
        .filter(|_| command_line(line).is_none())
    else {
        return Ok(line.to_owned());
    };
    let name = rest.split_whitespace().next().unwrap_or_default();
    let is_known = |command: &CompletionItem| command.text == name;
    // `,quit` is a command of the agent, too, and therefore in the list.
    if !rest.starts_with(char::is_whitespace) && commands.iter().any(is_known) {
        return Ok(format!("{}{rest}", command_prefix()));
    }
    let names = commands.iter().map(|command| command.text.as_str());
    Err(match closest_match(name, names) {
        Some(similar) => format!("unknown command `/{name}`, did you mean `/{similar}`?"),
        None => format!("unknown command `/{name}`; `/help` lists the commands"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_is_a_comma_for_commands_that_exist() {
        let command = |text: &str| CompletionItem {
            text: text.to_owned(),
            ..CompletionItem::default()
        };
        let commands = ["help", "tape.info", "model"].map(command);
        for (line, meaning) in [
            ("/help", Ok(",help")),
            ("/model openai:x", Ok(",model openai:x")),
            ("hello", Ok("hello")),
            (" /help", Ok(" /help")),
            (",ls", Ok(",ls")),
            (
                "/hlep",
                Err("unknown command `/hlep`, did you mean `/help`?"),
            ),
            (
                "/etc/hosts is wrong",
                Err("unknown command `/etc/hosts`; `/help` lists the commands"),
            ),
            ("/", Err("unknown command `/`; `/help` lists the commands")),
            (
                "/ help",
                Err("unknown command `/help`, did you mean `/help`?"),
            ),
        ] {
            let resolved = resolve_slash(line, &commands);
            let resolved = resolved.as_deref().map_err(String::as_str);
            assert_eq!(resolved, meaning, "{line:?}");
        }
    }
}
