//! `bub hooks`: shows hooks and the plugins that implement them.

use std::{fmt::Write, process::ExitCode, sync::Arc};

use bub::CommandContext;
use bub_kernel::{PluginState, Result, hooks::HOOKS};
use bub_terminal::Style;
use serde_json::json;

use super::{
    listing::{Listing, cell},
    output,
};

/// Show hooks and the plugins that implement them
///
/// The plugins are in registration order. They run in reverse order: the plugin listed last runs first.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
pub(super) struct HooksArgs {
    /// Describe all hooks
    #[arg(long)]
    all: bool,
    /// Show plugins in execution order
    #[arg(long, conflicts_with = "all")]
    order: bool,
    /// Print the JSON Schema of the plugin protocol
    #[arg(long, conflicts_with_all = ["all", "order"])]
    schema: bool,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["all", "schema"])]
    json: bool,
}

pub(super) async fn run(context: CommandContext, args: HooksArgs) -> Result<ExitCode> {
    if args.schema {
        output::print(&format!("{:#}\n", bub_plugin::protocol_schema()))
    } else if args.all {
        output::print(&hooks_table())
    } else if args.json {
        output::print_untrusted(&implementations_json(&context, args.order))
    } else {
        list_implementations(&context, args.order).print(&context.settings)
    }
}

fn list_implementations(context: &CommandContext, in_execution_order: bool) -> Listing {
    let mut listing = Listing::default();
    let framework = &context.framework;
    let failed = super::plugin::unstartable_plugins(context);
    for (spec, mut plugins) in framework.hooks().implemented_hooks() {
        if in_execution_order {
            plugins.reverse();
        }
        let label = |name: &Arc<str>| {
            let has_failed = failed.iter().any(|failed| **failed == **name);
            format!("{name}{}", if has_failed { " (error)" } else { "" })
        };
        let plugins: Vec<String> = plugins.iter().map(label).collect();
        listing.styled_row([
            cell(spec.name, Style::BOLD),
            cell(format!(": {}", plugins.join(", ")), Style::NONE),
        ]);
    }
    let mut listing = listing.or_row("(no hook implementations)");
    for plugin in framework.plugins() {
        if let PluginState::Failed(reason) = &plugin.state {
            let text = format!("plugin {} is not loaded: {reason}", plugin.name);
            listing.styled_row([cell(text, Style::RED)]);
        }
    }
    listing
}

/// Returns one JSON object per hook.
fn implementations_json(context: &CommandContext, in_execution_order: bool) -> String {
    let hooks = context.framework.hooks().implemented_hooks();
    let lines = hooks.into_iter().map(|(spec, mut plugins)| {
        if in_execution_order {
            plugins.reverse();
        }
        let plugins: Vec<&str> = plugins.iter().map(|name| &**name).collect();
        format!(
            "{}\n",
            json!({"hook": spec.name, "kind": spec.kind.name(), "plugins": plugins})
        )
    });
    lines.collect()
}

/// Returns the hook table in Markdown, which is also in `docs/hooks.md`.
fn hooks_table() -> String {
    let mut text =
        String::from("| Hook | Kind | Arguments | Result | Description |\n|---|---|---|---|---|\n");
    for spec in HOOKS {
        let sync_only = if spec.sync_only { ", synchronous" } else { "" };
        let args = spec.args.iter();
        let args = args.map(|arg| format!("`{}: {}`", arg.name, arg.type_name.replace("'a ", "")));
        let result = match spec.result {
            "()" => "–".to_owned(),
            result => format!("`{result}`"),
        };
        let _ = writeln!(
            text,
            "| `{}` | {}{sync_only} | {} | {result} | {} |",
            spec.name,
            spec.kind.name(),
            args.collect::<Vec<_>>().join(", "),
            spec.doc.trim()
        );
    }
    text
}
