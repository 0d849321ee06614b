//! `bub hooks`: which plugin implements which hook.

use std::{fmt::Write, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_kernel::{PluginState, hooks::HOOKS};
use clap::{Arg, ArgAction, Command};

use super::output;

pub(super) fn command() -> AppCommand {
    let all = Arg::new("all")
        .long("all")
        .action(ArgAction::SetTrue)
        .help("Describe all hooks");
    let command = Command::new("hooks")
        .about("Show hooks and the plugins that implement them")
        .long_about(
            "Show hooks and the plugins that implement them, in registration order. Plugins run in reverse order: the \
             plugin listed last runs first.",
        )
        .arg(all)
        .arg(
            Arg::new("order")
                .long("order")
                .action(ArgAction::SetTrue)
                .conflicts_with("all")
                .help("Show plugins in execution order"),
        )
        .arg(
            Arg::new("schema")
                .long("schema")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["all", "order"])
                .help("Print the JSON Schema of the plugin protocol"),
        );
    AppCommand::new(command, |context: CommandContext| async move {
        let all = context.matches.get_flag("all");
        if context.matches.get_flag("schema") {
            return output::print(&format!("{:#}\n", bub_plugin::schema()));
        }
        let order = context.matches.get_flag("order");
        output::print(&if all {
            table()
        } else {
            report(&context, order)
        })
    })
}

fn report(context: &CommandContext, as_run: bool) -> String {
    let mut text = String::new();
    let framework = &context.framework;
    let refused = super::plugin::refused(context);
    for (spec, mut plugins) in framework.hooks().report() {
        if as_run {
            plugins.reverse();
        }
        let is_refused = |name: &str| refused.iter().any(|refused| refused == name);
        let shown =
            |name: &Arc<str>| format!("{name}{}", if is_refused(name) { " (refused)" } else { "" });
        let plugins: Vec<String> = plugins.iter().map(shown).collect();
        let _ = writeln!(text, "{}: {}", spec.name, plugins.join(", "));
    }
    if text.is_empty() {
        text.push_str("(no hook implementations)\n");
    }
    for plugin in framework.plugins() {
        if let PluginState::Failed(reason) = &plugin.state {
            let (name, reason) = (super::one_line(&plugin.name), super::one_line(reason));
            let _ = writeln!(text, "plugin {name} is not in use: {reason}");
        }
    }
    text
}

/// The hook table in Markdown; `docs/hooks.md` holds the same.
fn table() -> String {
    let mut text = String::from(
        "| hook | kind | arguments | result | what it is for |\n|---|---|---|---|---|\n",
    );
    for spec in HOOKS {
        let kind = format!(
            "{}{}",
            spec.kind.name(),
            if spec.sync_only { ", synchronous" } else { "" }
        );
        let args: Vec<_> = spec
            .args
            .iter()
            .map(|arg| format!("`{}: {}`", arg.name, arg.type_name.replace("'a ", "")))
            .collect();
        let result = if spec.result == "()" {
            "–".to_owned()
        } else {
            format!("`{}`", spec.result)
        };
        let _ = writeln!(
            text,
            "| `{}` | {kind} | {} | {result} | {} |",
            spec.name,
            args.join(", "),
            spec.doc.trim()
        );
    }
    text
}
