//! The channels that the gateway would run.

use bub_gateway::settings::ENABLED_CHANNELS;
use bub_kernel::ChannelRole;

use super::{super::probe, CheckContext, Finding};

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let all = match check_context.framework.channels(&probe::discard_handler()) {
        Ok(channels) => channels,
        Err(error) => {
            return vec![Finding::error(
                error.to_string(),
                "see the plugin that provides it",
            )];
        }
    };
    let names = check_context.settings.get(&ENABLED_CHANNELS);
    if let Err(error) = bub_gateway::check_names(&names, &all) {
        return vec![Finding::error(
            error.message(),
            "correct `enabled_channels`",
        )];
    }
    let chosen = bub_gateway::select_channels(&names, &all);
    let mut findings = Vec::new();
    let is_named = names
        .iter()
        .any(|name| !matches!(name.trim(), "" | "all") && !name.trim().starts_with('!'));
    if chosen.is_empty() && is_named {
        let text = format!(
            "no channel of `enabled_channels` ({}) is set up, so the gateway does not start",
            names.join(", ")
        );
        findings.push(Finding::error(
            text,
            "set it up with `bub onboard`, or correct `enabled_channels`",
        ));
    }
    for channel in &chosen {
        let name = channel.name();
        let audience = channel
            .access_summary()
            .map_or(String::new(), |audience| format!("; {audience}"));
        // What the gateway would not start with.
        let who = match channel.validate() {
            Err(error) => Err(error.message().to_owned()),
            Ok(()) if check_context.is_offline => Ok(None),
            Ok(()) => probe::channel(&**channel).await,
        };
        findings.push(match who {
            Ok(who) => Finding::ok(format!(
                "{name}{}{audience}",
                who.map_or(String::new(), |who| format!(": {who}"))
            )),
            Err(problem) => Finding::error(
                format!("{name}: {problem}"),
                format!("correct the settings `{name}`"),
            ),
        });
    }
    let off = all
        .iter()
        .filter(|channel| channel.role() != ChannelRole::Interface);
    let off: Vec<_> = off
        .filter(|channel| !channel.enabled())
        .map(|channel| channel.name())
        .collect();
    if !off.is_empty() {
        findings.push(Finding::ok(format!("not set up: {}", off.join(", "))));
    }
    findings
}
