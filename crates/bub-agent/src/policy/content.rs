//! Limits of turns that contain text of others: users with a lower role, web pages, webhooks.
//!
//! The sender of such a turn keeps their role, but the model may follow instructions in that text. So a call that the
//! author of the text could not make is denied, or an owner is asked.

use std::borrow::Cow;

use bub_kernel::{
    Provenance, Role, Sender, ToolCaller, ToolContext, ToolSpec, Turn, UntrustedSource,
};
use bub_settings::Settings;
use serde_json::{Map, Value};

use super::{Policy, PolicyAction, PolicyDecision};
use crate::{
    files::FileAccess,
    settings::{POLICY_MIXED_COMPANY, POLICY_UNTRUSTED_CONTENT},
};

/// What text of others in the conversation restricts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentLimits {
    mixed_company: PolicyAction,
    untrusted_content: PolicyAction,
}

/// A limit because of text in the conversation.
struct ContentLimit {
    /// The highest role whose permissions apply without a question.
    role: Role,
    /// The action for calls that the role may not make.
    action: PolicyAction,
    /// What the conversation contains.
    cause: String,
}

impl Policy {
    /// Evaluates the policy for a tool call of a turn: for its sender, and for the text that the turn contains. Text in
    /// the conversation does not restrict the commands that a user types.
    pub(crate) fn evaluate_in_turn(
        &self,
        files: &FileAccess,
        context: &ToolContext,
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
    ) -> PolicyDecision {
        let turn = &context.turn;
        let sender = turn.sender();
        let mut decision = self.evaluate(sender, tool, arguments);
        let workspace = crate::workspace(turn.state());
        let environment = turn.environment().map(|environment| &**environment);
        let place = (workspace.as_deref(), environment);
        let refusal = |sender: &Sender| files.refusal_reason(sender, place, tool, arguments);
        for limit in self.content.limits(turn, context.caller) {
            let limited_sender = Sender {
                role: limit.role,
                ..sender.clone()
            };
            let mut limited = self.evaluate(&limited_sender, tool, arguments);
            let reason = refusal(&limited_sender).filter(|_| limited.action != PolicyAction::Deny);
            // A file that is refused to both is refused when it is opened.
            if let Some(reason) = reason
                && refusal(sender).as_ref() != Some(&reason)
            {
                limited = PolicyDecision::from_default(PolicyAction::Deny, &reason);
            }
            if limited.action <= decision.action {
                continue;
            }
            let (cause, rule) = (&limit.cause, &limited.rule);
            decision = match (limited.action, limit.action) {
                (PolicyAction::Deny, PolicyAction::Ask) => PolicyDecision {
                    accepts_content: true,
                    ..PolicyDecision::from_default(PolicyAction::Ask, cause)
                },
                (PolicyAction::Deny, _) => PolicyDecision::from_default(
                    PolicyAction::Deny,
                    &format!("{cause}, and {rule}; start a new session without it"),
                ),
                _ => limited,
            };
        }
        decision
    }

    /// Returns the sender of a turn with the role that applies to a call; see [`ContentLimits::effective_sender`].
    pub(crate) fn effective_sender<'a>(
        &self,
        turn: &'a Turn,
        caller: ToolCaller,
    ) -> Cow<'a, Sender> {
        self.content.effective_sender(turn, caller)
    }
}

impl ContentLimits {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            mixed_company: settings.get(&POLICY_MIXED_COMPANY),
            untrusted_content: settings.get(&POLICY_UNTRUSTED_CONTENT),
        }
    }

    /// Returns the sender of a turn with the role that applies to a call: lower than the sender's own role if text in
    /// the conversation limits the call, and no owner accepted that.
    pub(crate) fn effective_sender(self, turn: &Turn, caller: ToolCaller) -> Cow<'_, Sender> {
        let limits = self.limits(turn, caller);
        match limits.iter().map(|limit| limit.role).min() {
            Some(role) => Cow::Owned(Sender {
                role,
                ..turn.sender().clone()
            }),
            None => Cow::Borrowed(turn.sender()),
        }
    }

    /// Returns the limits for a call that are stricter than the role of the sender and not accepted by an owner.
    fn limits(self, turn: &Turn, caller: ToolCaller) -> Vec<ContentLimit> {
        if caller == ToolCaller::User {
            return Vec::new();
        }
        let provenance = turn.provenance();
        let people = people_limit(&provenance).map(|(role, cause)| ContentLimit {
            role,
            action: self.mixed_company,
            cause,
        });
        let content = content_cause(&provenance).map(|cause| ContentLimit {
            role: Role::Member,
            action: self.untrusted_content,
            cause,
        });
        let mut limits: Vec<_> = people.into_iter().chain(content).collect();
        limits.retain(|limit| {
            limit.role < turn.sender().role
                && match limit.action {
                    PolicyAction::Allow => false,
                    PolicyAction::Ask => !turn.is_provenance_accepted(),
                    PolicyAction::Deny => true,
                }
        });
        limits
    }
}

/// Returns the lowest role of a person whose text is included, with a description. The author of a forwarded message is
/// treated as a member: the sender wanted the model to read it.
fn people_limit(provenance: &Provenance) -> Option<(Role, String)> {
    let is_forwarded = provenance.untrusted.contains(&UntrustedSource::Forwarded);
    let forwarded = is_forwarded.then_some(Role::Member);
    let role = provenance.least_role.into_iter().chain(forwarded).min()?;
    let cause = if provenance.least_role == Some(role) {
        format!("the conversation contains text of a {}", role.name())
    } else {
        "the conversation contains a forwarded or quoted message".to_owned()
    };
    Some((role, cause))
}

/// Returns a description of the untrusted content, or `None` without such content.
fn content_cause(provenance: &Provenance) -> Option<String> {
    let sources = provenance.untrusted.iter();
    let names: Vec<_> = sources
        .filter_map(|source| match source {
            UntrustedSource::Forwarded => None,
            UntrustedSource::WorkspaceInstructions => {
                Some("instructions of a workspace that is not trusted")
            }
            UntrustedSource::WebPage => Some("a web page"),
            UntrustedSource::Webhook => Some("the content of a webhook"),
            UntrustedSource::ExternalTool => Some("text of an external tool"),
            _ => Some("text of unknown origin"),
        })
        .collect();
    (!names.is_empty()).then(|| format!("the conversation contains {}", names.join(" and ")))
}
