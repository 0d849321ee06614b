//! Comma commands: tool calls and shell lines that a user types.
//!
//! `,name word key=value` calls the tool `name`; anything else after the comma runs in the shell. Permissions are not
//! checked here: a command passes the same policy and hooks as a tool call of the model.

use std::sync::Arc;

use bub_kernel::{Error, Result, Tool, ToolSpec, command_line, command_prefix};
use bub_settings::closest_match;
use serde_json::{Map, Value};

/// A parsed comma command.
#[derive(Clone, Debug, PartialEq)]
pub enum CommaCommand {
    /// A tool call. All argument values are strings; the tool converts them to the types of its parameters.
    Tool {
        /// The tool's name.
        name: String,
        /// The arguments.
        arguments: Map<String, Value>,
    },
    /// A shell command.
    Shell {
        /// The command line.
        line: String,
    },
}

/// The command that shows what changed in a Git repository. With arguments, it is the program `diff`.
pub(crate) const DIFF_COMMAND: &str = "diff";
/// What [`DIFF_COMMAND`] runs in the shell. Without a commit, it compares with the empty tree.
pub(crate) const DIFF_SHELL_LINE: &str = "git --no-pager status --short && \
     git --no-pager diff --no-ext-diff --no-color \
     \"$(git rev-parse --quiet --verify HEAD || git hash-object -t tree /dev/null)\"";

/// Returns an error if a shell line is probably a mistyped command: its first word is similar to one of `names`, and
/// `is_program` does not know it.
pub(crate) fn mistyped_error<'a>(
    line: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    is_program: impl Fn(&str) -> bool,
) -> Option<Error> {
    let word = line.split_whitespace().next()?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !word.chars().all(is_word) || names.clone().any(|name| name == word) || is_program(word) {
        return None;
    }
    let similar = closest_match(word, names)?;
    let prefix = command_prefix();
    Some(Error::invalid_input(format!(
        "unknown command `{prefix}{word}`, did you mean `{prefix}{similar}`? To run it in the shell, type: {prefix}bash command='{word} …'"
    )))
}

/// Parses a comma command. The prefix may be missing.
///
/// ```
/// use bub_agent::command::{CommaCommand, parse};
///
/// let line = "ls -la".to_owned();
/// assert_eq!(parse(",ls -la", &[])?, CommaCommand::Shell { line });
/// # Ok::<(), bub_kernel::Error>(())
/// ```
///
/// # Errors
///
/// Fails if the line is empty or has an unclosed quote, or if an argument is misplaced, duplicate or one too many.
pub fn parse(line: &str, tools: &[Arc<dyn Tool>]) -> Result<CommaCommand> {
    let line = command_line(line).unwrap_or_else(|| line.trim());
    if line.is_empty() {
        return Err(Error::invalid_input("empty command"));
    }
    let mut words = split_words(line)?.into_iter();
    let name = words.next().unwrap_or_default();
    let mut specs = tools.iter().map(|tool| tool.spec());
    match specs.find(|spec| spec.name == name) {
        Some(spec) => Ok(CommaCommand::Tool {
            name,
            arguments: assign_arguments(spec, words)?,
        }),
        None => Ok(CommaCommand::Shell {
            line: line.to_owned(),
        }),
    }
}

/// Assigns words to the parameters of a tool: `key=value` by name, other words by position.
pub fn assign_arguments(
    spec: &ToolSpec,
    words: impl Iterator<Item = String>,
) -> Result<Map<String, Value>> {
    let fail = |text: String| Err(Error::invalid_input(text));
    let names = spec.parameters().into_iter().map(|(name, _)| name);
    let names: Vec<&str> = names.collect();
    let mut arguments = Map::new();
    let mut by_name = false;
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => {
                by_name = true;
                (name, value)
            }
            None if by_name => {
                return fail(format!(
                    "positional argument '{word}' cannot appear after keyword arguments"
                ));
            }
            None => {
                let Some(name) = names.get(arguments.len()) else {
                    let takes = match names.as_slice() {
                        [] => "no arguments".to_owned(),
                        names => names.join(", "),
                    };
                    let tool = &spec.name;
                    return fail(format!(
                        "unexpected argument '{word}': {tool} takes {takes}"
                    ));
                };
                (*name, word.as_str())
            }
        };
        let previous = arguments.insert(name.to_owned(), Value::from(value));
        if previous.is_some() {
            return fail(format!("duplicate argument '{name}'; pass it once"));
        }
    }
    Ok(arguments)
}

/// Splits a line into words like a POSIX shell, without expansions.
///
/// ```
/// use bub_agent::command::split_words;
///
/// assert_eq!(split_words("fs.read 'my notes.md' limit=3")?, ["fs.read", "my notes.md", "limit=3"]);
/// # Ok::<(), bub_kernel::Error>(())
/// ```
pub fn split_words(line: &str) -> Result<Vec<String>> {
    bub_model::split_words(line).map_err(Error::invalid_input)
}
