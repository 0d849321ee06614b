//! The commands a plugin adds to the command line: described beforehand, run in the plugin.

use std::{collections::HashSet, io::Write as _, process::ExitCode, sync::Arc};

use bub_kernel::{CliCommand, CliContext, CommandArg, CommandSpec, Error, Result};
use serde_json::{Value, json};

use crate::{
    callbacks::{self, CallContext},
    peer::IncomingMessage,
    process::PluginProcess,
    stream::STREAM_CREDITS,
};

/// Arguments that every command has.
const GLOBAL_ARGS: &[&str] = &["help", "version", "workspace", "verbose"];

/// Checks what the parser of the command line would not survive, or read in a way that nobody means.
pub(crate) fn check(entry: &CommandSpec) -> Result<()> {
    let wrong = |cause: String| {
        Err(Error::config(format!(
            "the command `{}`: {cause}",
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
        if GLOBAL_ARGS.contains(&name.as_str()) || !names.insert(name) {
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

/// The command, run in the plugin.
pub(crate) fn command(plugin: &Arc<PluginProcess>, entry: &CommandSpec) -> CliCommand {
    let (plugin, name) = (Arc::clone(plugin), entry.name.clone());
    CliCommand::from_spec(entry.clone())
        .run(move |context| run(Arc::clone(&plugin), name.clone(), context))
}

async fn run(plugin: Arc<PluginProcess>, name: String, context: CliContext) -> Result<ExitCode> {
    let params = json!({"command": name, "args": context.args, "credits": STREAM_CREDITS});
    context
        .framework
        .clone()
        .run_scoped(async { talk(&plugin, &params).await })
        .await
}

async fn talk(plugin: &Arc<PluginProcess>, params: &Value) -> Result<ExitCode> {
    let peer = plugin.connect(None).await?;
    let mut asked = peer.ask("cli/run", params, STREAM_CREDITS);
    loop {
        match asked.next().await {
            IncomingMessage::Event(event) => {
                asked.grant(1);
                print(&event)?;
            }
            IncomingMessage::Question { id, method, params } => {
                callbacks::spawn(&peer, id, method, params, CallContext::new(plugin, None));
            }
            IncomingMessage::Response(answer) => {
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
