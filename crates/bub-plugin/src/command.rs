//! CLI commands of an external plugin. The descriptor declares the commands; the process of the plugin runs them.

use std::{
    collections::HashSet,
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
    sync::Arc,
};

use bub_kernel::{CliCommand, CliContext, CommandArg, CommandSpec, Error, Result};
use serde_json::{Value, json};

use crate::{
    callbacks::{self, CallContext},
    peer::IncomingMessage,
    process::PluginProcess,
    stream::STREAM_CREDITS,
};

/// Names of the arguments that every command has.
const GLOBAL_ARGS: &[&str] = &["help", "version", "workspace", "verbose"];

/// Checks that the command line parser accepts a command. Fails for invalid or reserved names, and for arguments that
/// contradict each other.
pub(crate) fn check_command(entry: &CommandSpec) -> Result<()> {
    let invalid = |cause: String| Err(Error::config(format!("command `{}`: {cause}", entry.name)));
    if entry.name == "help" {
        return invalid("the name is reserved; choose another name".to_owned());
    }
    let mut names = HashSet::new();
    let mut last: Option<&CommandArg> = None;
    for arg in &entry.args {
        let name = &arg.name;
        if !is_valid_name(name) {
            return invalid(format!(
                "invalid argument name `{name}`: expected lower-case letters, digits, - and _, starting with a letter"
            ));
        }
        if GLOBAL_ARGS.contains(&name.as_str()) || !names.insert(name) {
            return invalid(format!(
                "argument `{name}` is reserved or declared twice; choose another name"
            ));
        }
        if arg.flag && (arg.positional || arg.required || arg.many || arg.default.is_some()) {
            return invalid(format!(
                "flag `{name}` cannot be positional, required or repeated, and cannot have a default"
            ));
        }
        if arg.required && arg.default.is_some() {
            return invalid(format!(
                "argument `{name}` is required, so it cannot have a default"
            ));
        }
        if arg.positional {
            if let Some(last) = last.filter(|last| last.many || (arg.required && !last.required)) {
                return invalid(format!(
                    "argument `{name}` cannot follow `{}`: required arguments come first, a repeated one comes last",
                    last.name
                ));
            }
            last = Some(arg);
        }
    }
    Ok(())
}

/// Returns whether a name is valid for a command, an argument or a channel: 1 to 64 lower-case letters, digits, `-` and
/// `_`, starting with a letter.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_allowed)
}

/// Builds the CLI command that runs in the plugin's process.
pub(crate) fn build_command(plugin: &Arc<PluginProcess>, entry: &CommandSpec) -> CliCommand {
    let (plugin, name) = (Arc::clone(plugin), entry.name.clone());
    CliCommand::from_spec(entry.clone())
        .handler(move |context| run_command(Arc::clone(&plugin), name.clone(), context))
}

async fn run_command(
    plugin: Arc<PluginProcess>,
    name: String,
    context: CliContext,
) -> Result<ExitCode> {
    let params = json!({
        "command": name,
        "args": context.args,
        "argv": context.args.values(CommandSpec::RAW_ARG),
        "terminal": {
            "stdin": std::io::stdin().is_terminal(),
            "stdout": std::io::stdout().is_terminal(),
        },
        "credits": STREAM_CREDITS,
    });
    context
        .framework
        .clone()
        .run_scoped(async { run_in_plugin(&plugin, &params).await })
        .await
}

async fn run_in_plugin(plugin: &Arc<PluginProcess>, params: &Value) -> Result<ExitCode> {
    let peer = plugin.connect(None).await?;
    let mut request = peer.send_request("cli/run", params, STREAM_CREDITS);
    loop {
        match request.next_message().await {
            IncomingMessage::Event(event) => {
                request.grant_credits(1);
                print_output(&event)?;
            }
            IncomingMessage::Question(question) => {
                callbacks::spawn_answer(&peer, question, CallContext::new(plugin, None));
            }
            IncomingMessage::Response(answer) => {
                let code = answer?
                    .get("code")
                    .and_then(Value::as_u64)
                    .unwrap_or_default();
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
        }
    }
}

fn print_output(event: &Value) -> Result<()> {
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
