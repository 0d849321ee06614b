//! The commands a plugin adds to the command line: described beforehand, run in the plugin.

use std::{collections::HashSet, io::Write as _, process::ExitCode, sync::Arc};

use bub_kernel::{CliCommand, CliContext, Error, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use crate::{
    callbacks::{self, Context},
    descriptor::{CommandArg, CommandEntry},
    external::External,
    peer::Arrival,
    stream::CREDITS,
};

/// Arguments that every command has.
const EVERYWHERE: &[&str] = &["help", "version", "workspace", "verbose"];

/// Checks what the parser of the command line would not survive, or read in a way that nobody means.
pub(crate) fn check(entry: &CommandEntry) -> Result<()> {
    let wrong = |why: String| {
        Err(Error::config(format!(
            "the command `{}`: {why}",
            entry.name
        )))
    };
    if entry.name == "help" {
        return wrong("the name is taken".to_owned());
    }
    let mut names = HashSet::new();
    let mut last: Option<&CommandArg> = None;
    for arg in &entry.args {
        let name = &arg.name;
        if !is_plain(name) {
            return wrong(format!(
                "`{name}` is no name for an argument: lower-case letters, digits, - and _"
            ));
        }
        if EVERYWHERE.contains(&name.as_str()) || !names.insert(name) {
            return wrong(format!("there is an argument `{name}` already"));
        }
        if arg.flag && (arg.positional || arg.required || arg.many || arg.default.is_some()) {
            return wrong(format!(
                "`{name}` is a flag, which has no place, no value and need not be there"
            ));
        }
        if arg.required && arg.default.is_some() {
            return wrong(format!("`{name}` is required and has a default"));
        }
        if arg.positional {
            if let Some(last) = last.filter(|last| last.many || (arg.required && !last.required)) {
                return wrong(format!(
                    "nothing that is required may follow `{}`, nor anything when it is many",
                    last.name
                ));
            }
            last = Some(arg);
        }
    }
    Ok(())
}

/// Whether this is a name that can be typed as a word or after `--`.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_fine)
}

/// The command, as help shows it.
pub(crate) fn command(plugin: &Arc<External>, entry: &CommandEntry) -> CliCommand {
    let args = entry.args.iter().map(argument);
    let command = Command::new(entry.name.clone())
        .about(entry.about.clone())
        .args(args);
    let (plugin, entry) = (Arc::clone(plugin), Arc::new(entry.clone()));
    CliCommand::new(command, move |context| {
        run(Arc::clone(&plugin), Arc::clone(&entry), context)
    })
}

fn argument(arg: &CommandArg) -> Arg {
    let mut made = Arg::new(arg.name.clone())
        .help(arg.help.clone())
        .required(arg.required);
    if !arg.positional {
        made = made.long(arg.name.clone());
    }
    if arg.flag {
        return made.action(ArgAction::SetTrue);
    }
    if let Some(default) = &arg.default {
        made = made.default_value(default.clone());
    }
    let action = if arg.many {
        ArgAction::Append
    } else {
        ArgAction::Set
    };
    made.action(action).value_name(arg.name.to_uppercase())
}

fn given(matches: &ArgMatches, entry: &CommandEntry) -> Map<String, Value> {
    let value = |arg: &CommandArg| -> Value {
        if arg.flag {
            return matches.get_flag(&arg.name).into();
        }
        let mut values = matches
            .get_many::<String>(&arg.name)
            .into_iter()
            .flatten()
            .cloned();
        if arg.many {
            values.map(Value::from).collect()
        } else {
            values.next().map(Value::from).unwrap_or_default()
        }
    };
    entry
        .args
        .iter()
        .map(|arg| (arg.name.clone(), value(arg)))
        .collect()
}

async fn run(
    plugin: Arc<External>,
    entry: Arc<CommandEntry>,
    context: CliContext,
) -> Result<ExitCode> {
    let params =
        json!({"command": entry.name, "args": given(&context.matches, &entry), "credits": CREDITS});
    context
        .framework
        .clone()
        .run_scoped(async { talk(&plugin, &params).await })
        .await
}

async fn talk(plugin: &Arc<External>, params: &Value) -> Result<ExitCode> {
    let peer = plugin.reach(None).await?;
    let mut asked = peer.ask("cli/run", params, CREDITS);
    loop {
        match asked.next().await {
            Arrival::Event(event) => {
                asked.grant(1);
                print(&event)?;
            }
            Arrival::Question { id, method, params } => {
                callbacks::spawn(&peer, id, method, params, Context::of(plugin, None));
            }
            Arrival::Response(answer) => {
                asked.is_over = true;
                let code = answer?
                    .get("code")
                    .and_then(Value::as_u64)
                    .unwrap_or_default();
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
        }
    }
}

fn print(event: &Value) -> Result<()> {
    if let Some(text) = event.get("stdout").and_then(Value::as_str) {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    if let Some(text) = event.get("stderr").and_then(Value::as_str) {
        std::io::stderr().lock().write_all(text.as_bytes())?;
    }
    Ok(())
}
