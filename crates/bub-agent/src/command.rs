//! Comma commands: what a person types to use a tool, or the shell, without a model.
//!
//! `,name word key=value` calls the tool `name`; anything else is a line for the shell. Who may do that is not decided
//! here: a command goes through the same policy and hooks as a call of the model's.

use std::sync::Arc;

use bub_kernel::{Error, Result, Tool, ToolSpec};
use serde_json::{Map, Value};

/// A parsed command.
#[derive(Clone, Debug, PartialEq)]
pub enum CommaCommand {
    /// A call of a tool. Values are text; the tool makes of them what it needs.
    Tool {
        /// The tool's name.
        name: String,
        /// The arguments.
        arguments: Map<String, Value>,
    },
    /// A line for the shell.
    Shell {
        /// The line.
        line: String,
    },
}

/// Parses a command, with or without its leading comma.
pub fn parse(line: &str, tools: &[Arc<dyn Tool>]) -> Result<CommaCommand> {
    let line = line.trim();
    let line = line.strip_prefix(',').unwrap_or(line).trim();
    if line.is_empty() {
        return Err(Error::invalid_input("empty command"));
    }
    let mut words = split(line)?.into_iter();
    let name = words.next().unwrap_or_default();
    match tools
        .iter()
        .map(|tool| tool.spec())
        .find(|spec| spec.name == name)
    {
        Some(spec) => Ok(CommaCommand::Tool {
            name,
            arguments: arguments(spec, words)?,
        }),
        None => Ok(CommaCommand::Shell {
            line: line.to_owned(),
        }),
    }
}

/// Words by name, or by the order in which the tool lists its parameters.
pub fn arguments(
    spec: &ToolSpec,
    words: impl Iterator<Item = String>,
) -> Result<Map<String, Value>> {
    let wrong = |text: String| Err(Error::invalid_input(text));
    let names: Vec<&str> = spec
        .parameters()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let mut arguments = Map::new();
    let mut by_name = false;
    for word in words {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => {
                by_name = true;
                (name, value)
            }
            None if by_name => {
                return wrong(format!(
                    "positional argument '{word}' cannot appear after keyword arguments"
                ));
            }
            None => match names.get(arguments.len()) {
                Some(name) => (*name, word.as_str()),
                None if names.is_empty() => {
                    return wrong(format!("{} takes no arguments, got '{word}'", spec.name));
                }
                None => {
                    let takes = names.join(", ");
                    return wrong(format!(
                        "too many arguments for {}: '{word}'; it takes {takes}",
                        spec.name
                    ));
                }
            },
        };
        if arguments
            .insert(name.to_owned(), Value::from(value))
            .is_some()
        {
            return wrong(format!("argument '{name}' is given twice"));
        }
    }
    Ok(arguments)
}

/// Splits a line into words as a POSIX shell does, without expanding anything.
pub fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' | '"' => quoted(c, &mut rest, word.get_or_insert_default())?,
            '\\' => word.get_or_insert_default().push(escaped(&mut rest)?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(quote: char, rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<()> {
    while let Some(c) = rest.next() {
        match c {
            c if c == quote => return Ok(()),
            '\\' if quote == '"' => match escaped(rest)? {
                c if c == quote || c == '\\' => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
    Err(Error::invalid_input("No closing quotation"))
}

fn escaped(rest: &mut std::str::Chars<'_>) -> Result<char> {
    rest.next()
        .ok_or_else(|| Error::invalid_input("No escaped character"))
}
