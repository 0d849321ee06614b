//! The tool policy: allows, asks about or denies every tool call of the model and of users.
//!
//! * [`Policy`]: the configured rules, then the defaults. [`Policy::evaluate`] returns a [`PolicyDecision`].
//! * `rule`: parses and matches one rule. `glob`: matches the patterns of a rule.
//! * `content`: restricts turns that contain text of others.
//! * `remembered`: approvals for a session and for always.
//! * `approvals`: asks users if the decision is [`PolicyAction::Ask`].
//!
//! The policy fails closed: if its rules are invalid, it denies every call.

mod approvals;
mod content;
mod glob;
mod remembered;
mod rule;

use std::time::Duration;

use bub_kernel::settings::OWNERS;
use bub_kernel::{Error, ErrorKind, Role, Sender, ToolSpec};
use bub_settings::{AnySetting as _, SettingKey, SettingSource, Settings};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use self::remembered::SessionApprovals;
use crate::settings::{
    POLICY_ALLOW, POLICY_APPROVAL_TIMEOUT, POLICY_ASK, POLICY_DENY, POLICY_RULES, POLICY_RUN_ALLOW,
    POLICY_RUN_ASK, POLICY_RUN_DENY,
};

pub use approvals::{Approval, ApprovalOutcome, ApprovalParams, request_approval};
pub(crate) use approvals::{ask_for_exception, request_recorded_approval};
pub(crate) use content::ContentLimits;
pub use rule::{PolicyAction, PolicyRule};

/// Tools that members may use without a rule. They only read, or change only the current session.
const MEMBER_TOOLS: [&str; 18] = [
    "tape.info",
    "tape.search",
    "tape.read",
    "tape.anchors",
    "tape.handoff",
    "skill",
    "web.fetch",
    "spill.read",
    "help",
    "fs.read",
    "fs.list",
    "fs.glob",
    "fs.grep",
    "tool.describe",
    "todo",
    "status",
    "usage",
    "compact",
];

/// The tool policy: the configured rules, and defaults for calls that no rule matches.
#[derive(Debug)]
pub struct Policy {
    /// The rules, or the reason why they are invalid.
    rules: Result<Vec<PolicyRule>, String>,
    /// How many of the first rules are options of this run.
    run_rule_count: usize,
    owners: Vec<String>,
    approval_timeout: Duration,
    content: ContentLimits,
    /// The rules that users added with the answer `always`.
    added_rules: Mutex<Vec<PolicyRule>>,
    session_approvals: Mutex<SessionApprovals>,
}

/// The result of evaluating the policy for one tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyDecision {
    /// Whether the call is allowed, denied, or needs approval.
    pub action: PolicyAction,
    /// The rule that decided: a configured rule such as `rule 2`, or the text of a default rule.
    pub rule: String,
    /// The source of the rule. It contains local paths, so show it only to owners.
    pub origin: SettingSource,
    /// The `reason` of the rule.
    pub reason: Option<String>,
    /// The roles of users who may approve the call.
    pub approvers: Vec<Role>,
    /// Whether an approval accepts the text in the conversation until the end of the turn.
    pub accepts_content: bool,
}

impl PolicyDecision {
    pub(crate) fn from_default(action: PolicyAction, rule: &str) -> Self {
        Self {
            action,
            rule: rule.to_owned(),
            origin: SettingSource::Default,
            reason: None,
            approvers: vec![Role::Owner],
            accepts_content: false,
        }
    }

    /// Returns the error for a denied call. The model or the user who typed the command sees it.
    pub fn denial_error(&self, tool: &str) -> Error {
        denied_error(tool, self.reason.as_deref().unwrap_or(&self.rule))
    }
}

/// A setting that lists tools, and what happens to their calls.
type ToolList = (&'static SettingKey<Vec<String>>, PolicyAction);

/// The options of a run. They are checked first, but never loosen a denial of the configuration.
const RUN_LISTS: [ToolList; 3] = [
    (&POLICY_RUN_DENY, PolicyAction::Deny),
    (&POLICY_RUN_ASK, PolicyAction::Ask),
    (&POLICY_RUN_ALLOW, PolicyAction::Allow),
];

/// The list that is checked before `policy.rules`.
const FIRST_LISTS: [ToolList; 1] = [(&POLICY_DENY, PolicyAction::Deny)];

/// The lists that are checked after `policy.rules`, so that a rule can make an exception.
const LAST_LISTS: [ToolList; 2] = [
    (&POLICY_ASK, PolicyAction::Ask),
    (&POLICY_ALLOW, PolicyAction::Allow),
];

/// Returns the rules of the lists that are not empty.
fn list_rules(settings: &Settings, lists: &[ToolList]) -> Vec<PolicyRule> {
    let rule = |(key, action): &ToolList| {
        let tools = settings.get(key);
        let key = &key.setting().key;
        let origin = settings.origin(key).unwrap_or(SettingSource::Default);
        // Users know these settings as options of `bub run`.
        let name = match key.strip_prefix("policy.run_") {
            Some(option) => format!("--{option}"),
            None => key.to_string(),
        };
        (!tools.is_empty()).then(|| PolicyRule {
            reason: Some(format!("`{name}` lists the tool")),
            ..PolicyRule::for_tools(&tools, *action, origin)
        })
    };
    lists.iter().filter_map(rule).collect()
}

fn denied_error(tool: &str, cause: &str) -> Error {
    Error::new(
        ErrorKind::Tool,
        format!("Tool '{tool}' denied by policy: {cause}"),
    )
}

impl Policy {
    /// Reads the rules from the settings. If they are invalid, the policy denies every call, and
    /// [`Self::invalid_reason`] returns the reason.
    pub fn new(settings: &Settings) -> Self {
        let mut all_rules = list_rules(settings, &RUN_LISTS);
        let run_rule_count = all_rules.len();
        all_rules.extend(list_rules(settings, &FIRST_LISTS));
        let first = all_rules.len() + 1;
        let rules = settings.get(&POLICY_RULES).into_iter().enumerate();
        let rules = rules.map(|(index, map)| {
            let origin = settings.origin(&format!("policy.rules.{index}"));
            let (number, origin) = (first + index, origin.unwrap_or(SettingSource::Default));
            let source = origin.to_string();
            let rule = PolicyRule::from_map(map, number, origin);
            rule.map_err(|problem| format!("{source}: rule {number}: {problem}"))
        });
        let owners = settings.get(&OWNERS);
        let invalid_owner = owners.iter().find(|owner| !is_valid_owner(owner));
        let rules = match invalid_owner {
            Some(owner) => Err(format!(
                "invalid entry `{owner}` in `owners`: expected `channel:id`"
            )),
            None => rules.collect::<Result<Vec<_>, _>>().map(|rules| {
                all_rules.extend(rules);
                all_rules.extend(list_rules(settings, &LAST_LISTS));
                for (number, rule) in (1..).zip(&mut all_rules) {
                    rule.number = number;
                }
                all_rules
            }),
        };
        Self {
            rules,
            run_rule_count,
            owners,
            approval_timeout: settings.get(&POLICY_APPROVAL_TIMEOUT),
            content: ContentLimits::new(settings),
            added_rules: Mutex::default(),
            session_approvals: Mutex::default(),
        }
    }

    /// Returns why the rules are invalid, or `None` if they are valid.
    pub fn invalid_reason(&self) -> Option<&str> {
        self.rules.as_ref().err().map(String::as_str)
    }

    /// Returns the configured rules in evaluation order.
    pub fn rules(&self) -> &[PolicyRule] {
        self.rules.as_deref().unwrap_or_default()
    }

    /// Returns the defaults that apply if no rule matches, one line per role.
    pub fn defaults() -> [(Role, String); 3] {
        [
            (
                Role::Owner,
                "allow all tools; ask before they use another chat".to_owned(),
            ),
            (
                Role::Member,
                format!(
                    "allow {}, quit, and tools of their channel; deny others; files only in the workspace",
                    MEMBER_TOOLS.join(", ")
                ),
            ),
            (Role::Guest, "deny all tools".to_owned()),
        ]
    }

    /// Returns how long an approval request waits for an answer.
    pub fn approval_timeout(&self) -> Duration {
        self.approval_timeout
    }

    /// Returns the role of a user in a channel. `allowed` tells whether the channel's settings grant the user access.
    pub fn resolve_role(&self, channel: &str, id: &str, allowed: bool) -> Role {
        let is_owner = |owner: &String| owner.split_once(':') == Some((channel, id));
        match self.owners.iter().any(is_owner) {
            true => Role::Owner,
            false if allowed => Role::Member,
            false => Role::Guest,
        }
    }

    /// Evaluates the policy for a tool call. `arguments` are the arguments that the tool receives: the result of
    /// `Tool::normalize_arguments`.
    pub fn evaluate(
        &self,
        sender: &Sender,
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
    ) -> PolicyDecision {
        // Do not show the reason here, because it contains local paths.
        let Ok(rules) = &self.rules else {
            return PolicyDecision::from_default(
                PolicyAction::Deny,
                "the policy is invalid, so every call is denied; run `bub policy list` to see why",
            );
        };
        let is_match = |rule: &&PolicyRule| rule.matches(sender, tool, arguments);
        let default = default_decision(sender, tool, arguments);
        let added = self.added_rules.lock();
        let (run_rules, rules) = rules.split_at(self.run_rule_count.min(rules.len()));
        let configured = added.iter().chain(rules).find(is_match);
        let is_denied = configured.is_some_and(|rule| rule.action == PolicyAction::Deny);
        // What a user has approved for always is not asked about again.
        let is_approved = configured.is_some_and(PolicyRule::allows_exact_arguments);
        let mut run_rules = run_rules.iter().filter(is_match);
        let option = run_rules.find(|rule| match rule.action {
            PolicyAction::Deny => true,
            PolicyAction::Ask => !is_denied && !is_approved,
            PolicyAction::Allow => !is_denied,
        });
        if let Some(rule) = option.or(configured) {
            let is_loosened =
                rule.action == PolicyAction::Ask && default.action == PolicyAction::Deny;
            if is_loosened && rule.roles.is_none() {
                let (cause, number, role) = (&default.rule, rule.number, sender.role.name());
                let text = format!("{cause}; rule {number} does not name the role {role}");
                return PolicyDecision::from_default(PolicyAction::Deny, &text);
            }
            return PolicyDecision {
                action: rule.action,
                rule: format!("rule {}", rule.number),
                origin: rule.origin.clone(),
                reason: rule.reason.clone(),
                approvers: rule.approvers.clone(),
                accepts_content: false,
            };
        }
        default
    }
}

/// Returns the decision for a call that no rule matches.
fn default_decision(
    sender: &Sender,
    tool: &ToolSpec,
    arguments: &Map<String, Value>,
) -> PolicyDecision {
    // The tools of a channel reach only the chat of the turn.
    let is_channel_tool = tool
        .name
        .split_once('.')
        .is_some_and(|(channel, _)| channel == sender.channel);
    let (action, reason) = match sender.role {
        Role::Owner if names_other_chat(sender, tool, arguments) => (
            PolicyAction::Ask,
            "a tool uses another chat than the one of this conversation",
        ),
        Role::Owner => (PolicyAction::Allow, "owners may use every tool"),
        Role::Member if MEMBER_TOOLS.contains(&tool.name.as_str()) => {
            (PolicyAction::Allow, "members may use read-only tools")
        }
        Role::Member if tool.name == "quit" => (
            PolicyAction::Allow,
            "members may stop what runs in their session",
        ),
        Role::Member if is_channel_tool => (
            PolicyAction::Allow,
            "members may use the tools of their channel",
        ),
        Role::Member => (PolicyAction::Deny, "members may use only read-only tools"),
        Role::Guest => (PolicyAction::Deny, "guests may not use tools"),
    };
    PolicyDecision::from_default(action, reason)
}

/// Returns whether a tool of a channel is called with the id of another chat than the sender's.
fn names_other_chat(sender: &Sender, tool: &ToolSpec, arguments: &Map<String, Value>) -> bool {
    let chat = match arguments.get("chat_id") {
        None | Some(Value::Null) => return false,
        Some(Value::String(chat)) => chat.clone(),
        Some(chat) => chat.to_string(),
    };
    let channel = tool.name.split_once('.').map(|(channel, _)| channel);
    channel != Some(&*sender.channel) || chat != sender.chat_id
}

fn is_valid_owner(owner: &str) -> bool {
    owner
        .split_once(':')
        .is_some_and(|(channel, id)| !channel.trim().is_empty() && !id.trim().is_empty())
}
