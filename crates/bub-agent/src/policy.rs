//! Who may do what: every tool call is decided here, whether a model asked for it or a person typed it.
//!
//! * [`Policy`]: the rules of the configuration, then the defaults; [`Policy::decide`] gives a [`PolicyDecision`].
//! * `rule`: one rule, read and matched. `glob`: its patterns.
//! * `approvals`: what happens when the verdict is [`PolicyAction::Ask`].
//!
//! What fails denies: a policy that cannot be read allows nothing.

mod approvals;
mod glob;
mod rule;

use std::time::Duration;

use bub_kernel::settings::OWNERS;
use bub_kernel::{Error, ErrorKind, Role, Sender, ToolSpec};
use bub_settings::{SettingSource, Settings};
use serde_json::{Map, Value};

use crate::settings::{FS_CONFINE, POLICY_APPROVAL_TIMEOUT, POLICY_RULES};

pub use approvals::{Approval, ApprovalOutcome, ApprovalParams, ask};
pub use rule::{PolicyAction, PolicyRule};

/// What members may use without a rule: tools that read, and change nothing but the session they are used in.
const MEMBER_TOOLS: [&str; 9] = [
    "tape.info",
    "tape.search",
    "tape.anchors",
    "tape.handoff",
    "skill",
    "web.fetch",
    "spill.read",
    "help",
    "fs.read",
];

/// The rules in force.
#[derive(Debug)]
pub struct Policy {
    /// The rules, or what is wrong with them.
    rules: Result<Vec<PolicyRule>, String>,
    owners: Vec<String>,
    approval_timeout: Duration,
    confine: bool,
}

/// What is to happen to a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyDecision {
    /// What to do.
    pub action: PolicyAction,
    /// What decided: `rule 2`, or a default.
    pub rule: String,
    /// Where that rule is written. For the owner's eyes: it names files of this computer.
    pub origin: SettingSource,
    /// Why, in the words of the rule.
    pub reason: Option<String>,
}

impl PolicyDecision {
    fn default(action: PolicyAction, rule: &str) -> Self {
        Self {
            action,
            rule: rule.to_owned(),
            origin: SettingSource::Default,
            reason: None,
        }
    }

    /// What the model, or whoever typed the command, is told about a call that is not made.
    pub fn denial(&self, tool: &str) -> Error {
        denied(tool, self.reason.as_deref().unwrap_or(&self.rule))
    }
}

fn denied(tool: &str, cause: &str) -> Error {
    Error::new(
        ErrorKind::Tool,
        format!("Tool '{tool}' denied by policy: {cause}"),
    )
}

impl Policy {
    /// Reads the rules. Mistakes are kept: such a policy denies everything, and [`Self::problem`] says why.
    pub fn new(settings: &Settings) -> Self {
        let rules = settings
            .get(&POLICY_RULES)
            .into_iter()
            .enumerate()
            .map(|(index, map)| {
                let origin = settings
                    .origin(&format!("policy.rules.{index}"))
                    .unwrap_or(SettingSource::Default);
                let place = origin.to_string();
                PolicyRule::read(map, index + 1, origin)
                    .map_err(|problem| format!("{place}: rule {}: {problem}", index + 1))
            });
        let owners = settings.get(&OWNERS);
        let wrong = owners.iter().find(|owner| !is_owner_entry(owner));
        let rules = match wrong {
            Some(wrong) => Err(format!("`owners` has `{wrong}`, expected `channel:id`")),
            None => rules.collect(),
        };
        Self {
            rules,
            owners,
            approval_timeout: settings.get(&POLICY_APPROVAL_TIMEOUT),
            confine: settings.get(&FS_CONFINE),
        }
    }

    /// What is wrong with the configured rules.
    pub fn problem(&self) -> Option<&str> {
        self.rules.as_ref().err().map(String::as_str)
    }

    /// The configured rules, in the order in which they are asked.
    pub fn rules(&self) -> &[PolicyRule] {
        self.rules.as_deref().unwrap_or_default()
    }

    /// What happens where no rule fits, one line for each role.
    pub fn defaults() -> [(Role, String); 3] {
        [
            (Role::Owner, "allow *".to_owned()),
            (
                Role::Member,
                format!(
                    "allow {}, quit, tools of the channel they write by; deny the rest; files only in the workspace",
                    MEMBER_TOOLS.join(", ")
                ),
            ),
            (Role::Guest, "deny *".to_owned()),
        ]
    }

    /// How long an answer is waited for.
    pub fn approval_timeout(&self) -> Duration {
        self.approval_timeout
    }

    /// The role of somebody in a channel; `allowed` when the channel's own settings let that person in.
    pub fn role(&self, channel: &str, id: &str, allowed: bool) -> Role {
        let is_owner = |owner: &String| {
            owner
                .split_once(':')
                .is_some_and(|(of, who)| of == channel && who == id)
        };
        match self.owners.iter().any(is_owner) {
            true => Role::Owner,
            false if allowed => Role::Member,
            false => Role::Guest,
        }
    }

    /// Whether the `fs` tools stay inside the workspace: always, for anybody but the owner.
    pub fn confines_files(&self, sender: &Sender) -> bool {
        self.confine || self.rules.is_err() || sender.role != Role::Owner
    }

    /// Decides about a call, with the arguments it is going to be made with.
    pub fn decide(
        &self,
        sender: &Sender,
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
    ) -> PolicyDecision {
        // The details name files of this computer; `bub policy` has them.
        let Ok(rules) = &self.rules else {
            return PolicyDecision::default(
                PolicyAction::Deny,
                "the policy has a mistake, so nothing is allowed",
            );
        };
        if let Some(rule) = rules
            .iter()
            .find(|rule| rule.fits(sender, &tool.name, arguments))
        {
            return PolicyDecision {
                action: rule.action,
                rule: format!("rule {}", rule.number),
                origin: rule.origin.clone(),
                reason: rule.reason.clone(),
            };
        }
        match sender.role {
            Role::Owner => {
                PolicyDecision::default(PolicyAction::Allow, "owners may use every tool")
            }
            Role::Member if MEMBER_TOOLS.contains(&tool.name.as_str()) => {
                PolicyDecision::default(PolicyAction::Allow, "members may use tools that only read")
            }
            Role::Member if tool.name == "quit" => PolicyDecision::default(
                PolicyAction::Allow,
                "members may end what runs in their session",
            ),
            // They see to it themselves that they reach no other chat.
            Role::Member
                if tool
                    .name
                    .split_once('.')
                    .is_some_and(|(of, _)| of == sender.channel) =>
            {
                PolicyDecision::default(
                    PolicyAction::Allow,
                    "members may use the tools of the channel they write by",
                )
            }
            Role::Member => {
                PolicyDecision::default(PolicyAction::Deny, "members may use only tools that read")
            }
            Role::Guest => PolicyDecision::default(PolicyAction::Deny, "guests may use no tools"),
        }
    }
}

fn is_owner_entry(owner: &str) -> bool {
    owner
        .split_once(':')
        .is_some_and(|(channel, id)| !channel.trim().is_empty() && !id.trim().is_empty())
}
