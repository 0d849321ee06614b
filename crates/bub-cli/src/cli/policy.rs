//! `bub policy`: shows the tool policy and explains decisions.

use std::process::ExitCode;

use bub::CommandContext;
use bub_agent::{
    command,
    files::FileAccess,
    policy::{Policy, PolicyAction, PolicyRule},
};
use bub_gateway::pairing::Pairings;
use bub_kernel::settings::OWNERS;
use bub_kernel::{
    Error, Framework, Result, Role, Sender, SenderAccess, ToolSpec, escape_invisible,
};
use bub_settings::{SettingSource, Settings};
use bub_terminal::Style;
use serde_json::{Map, Value, json};

use super::{
    listing::{Listing, cell},
    output, probe,
};

/// Exit code if the call requires an approval.
const EXIT_WOULD_ASK: u8 = 3;
/// Exit code if the call is denied.
const EXIT_WOULD_DENY: u8 = 4;

#[derive(clap::Args)]
pub(super) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(clap::Subcommand)]
enum PolicyCommand {
    Explain(ExplainArgs),
    /// List rules in evaluation order, then the defaults
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Show the decision for a tool call and the rule behind it
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 allowed, 3 approval required, 4 denied")]
struct ExplainArgs {
    /// Tool of the call to explain
    tool: String,
    /// Arguments of the call, as in a comma command
    #[arg(value_name = "ARG=VALUE", num_args = 0..)]
    arguments: Vec<String>,
    /// Role of the sender [default: from `owners` and `bub pair`, otherwise guest]
    #[arg(long, value_parser = ["owner", "member", "guest"])]
    role: Option<String>,
    /// Channel of the message [default: this terminal]
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Id of the sender in the channel
    #[arg(long, value_name = "ID")]
    sender: Option<String>,
    /// Id of the chat [default: a private chat with the sender]
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    chat: Option<String>,
}

pub(super) async fn run(context: CommandContext, args: PolicyArgs) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let policy = Policy::new(settings);
    match args.command {
        PolicyCommand::Explain(args) => explain_call(&context, &policy, args),
        PolicyCommand::List { json: true } => {
            output::print_untrusted(&rules_json(framework, &policy))
        }
        PolicyCommand::List { json: false } => list_rules(framework, &policy, settings),
    }
}

fn explain_call(context: &CommandContext, policy: &Policy, args: ExplainArgs) -> Result<ExitCode> {
    let framework = &context.framework;
    let (sender, denied_access) = args.sender(context, policy)?;
    // The tool is named as in the configuration, or as the model names it.
    let is_named = |spec: &ToolSpec| spec.name == args.tool || spec.model_name() == args.tool;
    let mut tools = framework.tools().iter();
    let callable = tools.find(|tool| is_named(tool.spec())).ok_or_else(|| {
        let name = &args.tool;
        Error::invalid_input(format!(
            "unknown tool `{name}`; run `bub run {}help` to list tools",
            bub_kernel::command_prefix()
        ))
    })?;
    let tool = callable.spec();
    let arguments = command::assign_arguments(tool, args.arguments.into_iter())?;
    let arguments = callable.normalize_arguments(arguments)?;
    check_arguments(tool, &arguments)?;
    let mut decision = policy.evaluate(&sender, tool, &arguments);
    let files = FileAccess::new(&context.settings);
    let is_confined = tool.name.starts_with("fs.") && files.is_confined(&sender);
    let workspace = Some(framework.workspace());
    if decision.action != PolicyAction::Deny
        && let Some(reason) = files.refusal_reason(&sender, (workspace, None), tool, &arguments)
    {
        (decision.action, decision.rule) = (PolicyAction::Deny, reason);
        (decision.origin, decision.reason) = (SettingSource::Default, None);
    }
    if let Some(reason) = denied_access {
        let rule = format!("channel `{}` gives no access: {reason}", sender.channel);
        (decision.action, decision.rule) = (PolicyAction::Deny, rule);
        (decision.origin, decision.reason) = (SettingSource::Default, None);
    }
    let sender_name = if sender == Sender::terminal() {
        "this terminal".to_owned()
    } else {
        sender.to_string()
    };
    let origin = &decision.origin;
    let (action, role) = (decision.action.name(), sender.role.name());
    let mut listing = Listing::default();
    let style = match decision.action {
        PolicyAction::Allow => Style::GREEN,
        PolicyAction::Ask => Style::YELLOW,
        PolicyAction::Deny => Style::RED,
    };
    listing.styled_row([
        cell(format!("{}: ", tool.name), Style::BOLD),
        cell(action, style),
        cell(format!(" for {role} ({sender_name})"), Style::NONE),
    ]);
    if !arguments.is_empty() {
        let arguments = arguments.iter();
        let arguments = arguments.map(|(name, value)| format!("{name}={value}"));
        let arguments: Vec<_> = arguments.collect();
        listing.row(format!("arguments: {}", arguments.join(" ")));
    }
    listing.row(format!("because: {} ({origin})", decision.rule));
    if let Some(reason) = &decision.reason {
        listing.row(format!("reason: {reason}"));
    }
    if decision.action != PolicyAction::Deny && is_confined {
        listing.row("note: only files in the workspace");
    }
    if decision.action == PolicyAction::Ask {
        let timeout = policy.approval_timeout().as_secs();
        let approvers: Vec<_> = decision.approvers.iter().map(|role| role.name()).collect();
        listing.row(format!("note: approved by {}", approvers.join(" or ")));
        listing.row(format!("note: denied if not answered within {timeout} s"));
    }
    listing.print(&context.settings)?;
    Ok(match decision.action {
        PolicyAction::Allow => ExitCode::SUCCESS,
        PolicyAction::Ask => ExitCode::from(EXIT_WOULD_ASK),
        PolicyAction::Deny => ExitCode::from(EXIT_WOULD_DENY),
    })
}

/// Fails if the tool has no argument of a given name, or if it would reject the value. A policy rule about such a call
/// would never match.
fn check_arguments(tool: &ToolSpec, arguments: &Map<String, Value>) -> Result<()> {
    let (name, parameters) = (&tool.name, &tool.parameters);
    let Some(properties) = parameters.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    for (argument, value) in arguments {
        let Some(schema) = properties.get(argument) else {
            let names: Vec<_> = properties.keys().map(String::as_str).collect();
            let takes = match names.as_slice() {
                [] => "no arguments".to_owned(),
                names => names.join(", "),
            };
            return Err(Error::invalid_input(format!(
                "unknown argument `{argument}`: {name} takes {takes}"
            )));
        };
        // Values on the command line are text. What a number or a boolean needs was converted before.
        let expected = schema.get("type").and_then(Value::as_str);
        let expected = expected.filter(|expected| !matches!(*expected, "string" | "null"));
        if let Some(expected) = expected.filter(|_| value.is_string()) {
            return Err(Error::invalid_input(format!(
                "invalid value {value} for `{argument}` of {name}: expected {expected}"
            )));
        }
    }
    Ok(())
}

impl ExplainArgs {
    /// Returns the sender with the role that the channel gives, and why the channel gives no access, if so.
    fn sender(
        &self,
        context: &CommandContext,
        policy: &Policy,
    ) -> Result<(Sender, Option<String>)> {
        let role = self.role.as_deref().and_then(Role::from_name);
        if self.channel.is_none() && self.sender.is_none() && role.is_none() {
            return Ok((Sender::terminal(), None));
        }
        if self.channel.is_none() && self.sender.is_some() {
            return Err(Error::invalid_input(
                "`--sender` requires `--channel`, because ids belong to a channel",
            ));
        }
        let channel = self.channel.clone().unwrap_or_else(|| "cli".to_owned());
        let id = self.sender.clone().unwrap_or_default();
        let pairings = Pairings::new(context.settings.home());
        let paired = pairings.role(&channel, &id)?.unwrap_or_default();
        let all = context.framework.channels(&probe::discard_handler())?;
        let given = all.iter().find(|known| known.name() == channel);
        let given = given.filter(|_| role.is_none());
        let access = given.and_then(|given| given.sender_access(&id, self.chat.as_deref()));
        let (known, denied) = match access {
            Some(SenderAccess::Granted(known)) => (known, None),
            Some(SenderAccess::Denied(reason)) => (Role::Guest, Some(reason)),
            _ => (policy.resolve_role(&channel, &id, false).max(paired), None),
        };
        let sender = Sender {
            role: role.unwrap_or(known),
            channel,
            chat_id: self.chat.clone().unwrap_or_default(),
            id,
            ..Sender::default()
        };
        Ok((sender, denied))
    }
}

/// Returns the rules that give others what only owners may do by default, each with the danger.
pub(super) fn dangerous_rules(policy: &Policy) -> impl Iterator<Item = (&PolicyRule, String)> {
    let rules = policy.rules().iter();
    rules.filter_map(|rule| Some((rule, rule.risk()?)))
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

fn list_rules(framework: &Framework, policy: &Policy, settings: &Settings) -> Result<ExitCode> {
    let mut listing = Listing::default();
    let unmatchable: Vec<_> = unmatchable_rules(framework, policy).collect();
    for rule in policy.rules() {
        let (number, summary, origin) =
            (rule.number, escape_invisible(&rule.summary()), &rule.origin);
        listing.row(format!("{number}. {summary} ({origin})"));
        let mut reasons = unmatchable.iter();
        if let Some((_, reason)) = reasons.find(|(other, _)| other.number == number) {
            let text = format!("   never matches: {reason}");
            listing.styled_row([cell(text, Style::YELLOW)]);
        }
        if let Some(risk) = rule.risk() {
            listing.styled_row([cell(format!("   danger: {risk}"), Style::RED)]);
        }
    }
    for (role, summary) in Policy::defaults() {
        listing.row(format!("{}: {summary} (default)", role.name()));
    }
    let mut owners = vec!["this terminal".to_owned()];
    owners.extend(settings.get(&OWNERS));
    listing.row(format!("owners: {}", owners.join(", ")));
    listing.print(settings)
}

/// Returns one JSON object per rule, then one per default.
fn rules_json(framework: &Framework, policy: &Policy) -> String {
    let unmatchable: Vec<_> = unmatchable_rules(framework, policy).collect();
    let rules = policy.rules().iter().map(|rule| {
        let mut reasons = unmatchable.iter();
        let never = reasons.find(|(other, _)| other.number == rule.number);
        let never = never.map(|(_, reason)| reason);
        json!({"number": rule.number, "role": null, "summary": rule.summary(), "source": rule.origin.to_string(), "never_matches": never, "danger": rule.risk()})
    });
    let defaults = Policy::defaults().into_iter().map(|(role, summary)| {
        json!({"number": null, "role": role.name(), "summary": summary, "source": "default", "never_matches": null, "danger": null})
    });
    let lines = rules.chain(defaults).map(|line| format!("{line}\n"));
    lines.collect()
}
