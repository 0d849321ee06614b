//! `bub policy`: who may use which tool, and why.

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

/// The call would wait for an answer.
const EXIT_WOULD_ASK: u8 = 3;
/// The call would be denied.
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
            _ => output::print_text(&rules(&context.framework, &policy, settings)),
        }
    })
}

fn explain_call(framework: &Framework, policy: &Policy, matches: &ArgMatches) -> Result<ExitCode> {
    let sender = sender(policy, matches)?;
    let found = tool(framework, matches)?;
    let tool = found.spec();
    let words = matches
        .get_many::<String>("arguments")
        .into_iter()
        .flatten()
        .cloned();
    let arguments = found.normalize(command::arguments(tool, words)?)?;
    let mut policy_decision = policy.decide(&sender, tool, &arguments);
    let is_confined = tool.name.starts_with("fs.") && policy.confines_files(&sender);
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
    let who = if sender == Sender::terminal() {
        "this terminal".to_owned()
    } else {
        sender.to_string()
    };
    let _ = writeln!(text, " ({who})");
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
            "note: no answer within {} s is a no",
            policy.approval_timeout().as_secs()
        );
    }
    output::print_text(&text)?;
    Ok(match policy_decision.action {
        PolicyAction::Allow => ExitCode::SUCCESS,
        PolicyAction::Ask => ExitCode::from(EXIT_WOULD_ASK),
        PolicyAction::Deny => ExitCode::from(EXIT_WOULD_DENY),
    })
}

fn sender(policy: &Policy, matches: &ArgMatches) -> Result<Sender> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let role = text("role").and_then(|name| Role::from_name(&name));
    let (channel, id) = (text("channel"), text("sender"));
    if channel.is_none() && id.is_none() && role.is_none() {
        return Ok(Sender::terminal());
    }
    if channel.is_none() && id.is_some() {
        return Err(Error::invalid_input(
            "`--sender` needs the `--channel` in which that id is known",
        ));
    }
    let (channel, id) = (
        channel.unwrap_or_else(|| "cli".to_owned()),
        id.unwrap_or_default(),
    );
    let role = role.unwrap_or_else(|| policy.role(&channel, &id, false));
    Ok(Sender {
        role,
        channel,
        id,
        ..Sender::default()
    })
}

/// The tool of that name, however it is spelled.
fn tool<'a>(framework: &'a Framework, matches: &ArgMatches) -> Result<&'a Arc<dyn Tool>> {
    let name = matches.get_one::<String>("tool").map_or("", String::as_str);
    let is_named = |spec: &ToolSpec| spec.name == name || spec.model_name() == name;
    let found = framework.tools().iter().find(|tool| is_named(tool.spec()));
    found.ok_or_else(|| Error::invalid_input(format!("there is no tool `{name}`")))
}

/// The rules that are about no call of any tool, each with the reason.
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

fn rules(framework: &Framework, policy: &Policy, settings: &Settings) -> String {
    let mut text = String::new();
    let idle: Vec<_> = unmatchable_rules(framework, policy).collect();
    for rule in policy.rules() {
        let _ = writeln!(
            text,
            "{}. {} ({})",
            rule.number,
            rule.summary(),
            rule.origin
        );
        if let Some((_, reason)) = idle.iter().find(|(idle, _)| idle.number == rule.number) {
            let _ = writeln!(text, "   it never fits: {reason}");
        }
    }
    for (role, what) in Policy::defaults() {
        let _ = writeln!(text, "{}: {what} (default)", role.name());
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
