//! `bub hooks`: shows hooks and the plugins that implement them.

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
            return output::print(&format!("{:#}\n", bub_plugin::protocol_schema()));
        }
        let order = context.matches.get_flag("order");
        output::print(&if all {
            hooks_table()
        } else {
            implementations_text(&context, order)
        })
    })
}

fn implementations_text(context: &CommandContext, in_execution_order: bool) -> String {
    let mut text = String::new();
    let framework = &context.framework;
    let failed = super::plugin::unstartable_plugins(context);
    for (spec, mut plugins) in framework.hooks().implemented_hooks() {
        if in_execution_order {
            plugins.reverse();
        }
        let has_failed = |name: &str| failed.iter().any(|failed| failed == name);
        let label =
            |name: &Arc<str>| format!("{name}{}", if has_failed(name) { " (error)" } else { "" });
        let plugins: Vec<String> = plugins.iter().map(label).collect();
        let _ = writeln!(text, "{}: {}", spec.name, plugins.join(", "));
    }
    if text.is_empty() {
        text.push_str("(no hook implementations)\n");
    }
    for plugin in framework.plugins() {
        if let PluginState::Failed(reason) = &plugin.state {
            let (name, reason) = (
                super::sanitize_line(&plugin.name),
                super::sanitize_line(reason),
            );
            let _ = writeln!(text, "plugin {name} is not loaded: {reason}");
        }
    }
    text
}

/// Returns the hook table in Markdown, which is also in `docs/hooks.md`.
fn hooks_table() -> String {
    let mut text =
        String::from("| Hook | Kind | Arguments | Result | Description |\n|---|---|---|---|---|\n");
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
