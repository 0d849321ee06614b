//! `bub policy`: shows the tool policy and explains decisions.

use std::{fmt::Write, path::Path, process::ExitCode, sync::Arc};

use bub::{AppCommand, CommandContext};
use bub_agent::{
    command,
    policy::{Policy, PolicyAction, PolicyRule},
    tools::resolve_path,
};
use bub_kernel::settings::OWNERS;
use bub_kernel::{Error, Framework, Result, Role, Sender, Tool, ToolSpec};
use bub_settings::{SettingSource, Settings};
use clap::{Arg, ArgMatches, Command};
use serde_json::Value;

use super::output;

/// Exit code if the call requires an approval.
const EXIT_WOULD_ASK: u8 = 3;
/// Exit code if the call is denied.
const EXIT_WOULD_DENY: u8 = 4;

pub(super) fn command() -> AppCommand {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let explain = Command::new("explain")
        .about("Show the decision for a tool call and the rule behind it")
        .after_help("Exit codes: 0 allowed, 3 approval required, 4 denied")
        .arg(
            Arg::new("tool")
                .value_name("TOOL")
                .required(true)
                .help("Tool to call"),
        )
        .arg(
            Arg::new("arguments")
                .value_name("ARG=VALUE")
                .num_args(0..)
                .help("Arguments of the call, as in a comma command"),
        )
        .arg(
            option(
                "role",
                "ROLE",
                "Role of the sender [default: from `owners`, otherwise guest]",
            )
            .value_parser(["owner", "member", "guest"]),
        )
        .arg(option(
            "channel",
            "NAME",
            "Channel of the message [default: this terminal]",
        ))
        .arg(option("sender", "ID", "Id of the sender in the channel"));
    let list = Command::new("list").about("List rules in evaluation order, then the defaults");
    let command = Command::new("policy")
        .about("Show the tool policy and explain decisions")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(explain)
        .subcommand(list);
    AppCommand::new(command, |context: CommandContext| async move {
        let settings = &context.settings;
        let policy = Policy::new(settings);
        match context.matches.subcommand() {
            Some(("explain", matches)) => explain_call(&context.framework, &policy, matches),
            _ => output::print_untrusted(&rules_text(&context.framework, &policy, settings)),
        }
    })
}

fn explain_call(framework: &Framework, policy: &Policy, matches: &ArgMatches) -> Result<ExitCode> {
    let sender = sender_from_args(policy, matches)?;
    let callable = find_tool(framework, matches)?;
    let tool = callable.spec();
    let words = matches
        .get_many::<String>("arguments")
        .into_iter()
        .flatten()
        .cloned();
    let arguments = callable.normalize_arguments(command::assign_arguments(tool, words)?)?;
    let mut policy_decision = policy.evaluate(&sender, tool, &arguments);
    let is_confined = tool.name.starts_with("fs.") && policy.should_confine_files(&sender);
    let path = arguments.get("path").and_then(Value::as_str).map(Path::new);
    if let Some(path) = path.filter(|_| is_confined && policy_decision.action != PolicyAction::Deny)
    {
        let workspace = framework.workspace();
        if let Err(error) = resolve_path(&workspace.join(path), Some(workspace), true) {
            policy_decision.action = PolicyAction::Deny;
            error.message().clone_into(&mut policy_decision.rule);
            (policy_decision.origin, policy_decision.reason) = (SettingSource::Default, None);
        }
    }
    let mut text = format!(
        "{}: {} for {}",
        tool.name,
        policy_decision.action.name(),
        sender.role.name()
    );
    let sender_name = if sender == Sender::terminal() {
        "this terminal".to_owned()
    } else {
        sender.to_string()
    };
    let _ = writeln!(text, " ({sender_name})");
    let origin = if policy_decision.origin == SettingSource::Default {
        "default".to_owned()
    } else {
        policy_decision.origin.to_string()
    };
    let _ = writeln!(text, "because: {} ({origin})", policy_decision.rule);
    if let Some(reason) = &policy_decision.reason {
        let _ = writeln!(text, "reason: {reason}");
    }
    if policy_decision.action != PolicyAction::Deny && is_confined {
        text.push_str("note: only files in the workspace\n");
    }
    if policy_decision.action == PolicyAction::Ask {
        let _ = writeln!(
            text,
            "note: denied if not answered within {} s",
            policy.approval_timeout().as_secs()
        );
    }
    output::print_untrusted(&text)?;
    Ok(match policy_decision.action {
        PolicyAction::Allow => ExitCode::SUCCESS,
        PolicyAction::Ask => ExitCode::from(EXIT_WOULD_ASK),
        PolicyAction::Deny => ExitCode::from(EXIT_WOULD_DENY),
    })
}

fn sender_from_args(policy: &Policy, matches: &ArgMatches) -> Result<Sender> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let role = text("role").and_then(|name| Role::from_name(&name));
    let (channel, id) = (text("channel"), text("sender"));
    if channel.is_none() && id.is_none() && role.is_none() {
        return Ok(Sender::terminal());
    }
    if channel.is_none() && id.is_some() {
        return Err(Error::invalid_input(
            "`--sender` requires `--channel`, because ids belong to a channel",
        ));
    }
    let (channel, id) = (
        channel.unwrap_or_else(|| "cli".to_owned()),
        id.unwrap_or_default(),
    );
    let role = role.unwrap_or_else(|| policy.resolve_role(&channel, &id, false));
    Ok(Sender {
        role,
        channel,
        id,
        ..Sender::default()
    })
}

/// Finds the tool by its name or by the name that the model uses.
fn find_tool<'a>(framework: &'a Framework, matches: &ArgMatches) -> Result<&'a Arc<dyn Tool>> {
    let name = matches.get_one::<String>("tool").map_or("", String::as_str);
    let is_named = |spec: &ToolSpec| spec.name == name || spec.model_name() == name;
    let tool = framework.tools().iter().find(|tool| is_named(tool.spec()));
    tool.ok_or_else(|| {
        Error::invalid_input(format!(
            "unknown tool `{name}`; run `bub run ,help` to list tools"
        ))
    })
}

/// Returns the rules that never match a call, each with the reason.
pub(super) fn unmatchable_rules<'a>(
    framework: &Framework,
    policy: &'a Policy,
) -> impl Iterator<Item = (&'a PolicyRule, String)> {
    let tools: Vec<&ToolSpec> = framework.tools().iter().map(|tool| tool.spec()).collect();
    policy
        .rules()
        .iter()
        .filter_map(move |rule| Some((rule, rule.unmatchable_reason(&tools)?)))
}

fn rules_text(framework: &Framework, policy: &Policy, settings: &Settings) -> String {
    let mut text = String::new();
    let unmatchable: Vec<_> = unmatchable_rules(framework, policy).collect();
    for rule in policy.rules() {
        let _ = writeln!(
            text,
            "{}. {} ({})",
            rule.number,
            rule.summary(),
            rule.origin
        );
        let mut reasons = unmatchable.iter();
        if let Some((_, reason)) = reasons.find(|(other, _)| other.number == rule.number) {
            let _ = writeln!(text, "   never matches: {reason}");
        }
    }
    for (role, summary) in Policy::defaults() {
        let _ = writeln!(text, "{}: {summary} (default)", role.name());
    }
    let owners = settings.get(&OWNERS);
    let owners = if owners.is_empty() {
        String::new()
    } else {
        format!(", {}", owners.join(", "))
    };
    let _ = writeln!(text, "owners: this terminal{owners}");
    text
}
