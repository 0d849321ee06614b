//! Checks the channels that the gateway would run.

use bub_gateway::settings::ChannelSettings;
use bub_kernel::ChannelRole;

use super::{super::probe, CheckContext, Finding};

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let all = match check_context.framework.channels(&probe::discard_handler()) {
        Ok(channels) => channels,
        Err(error) => {
            let fix = "check the plugin that provides the channel";
            return vec![Finding::error(error.to_string(), fix)];
        }
    };
    let names = check_context
        .settings
        .get(ChannelSettings::ENABLED_CHANNELS);
    if let Err(error) = bub_gateway::check_channel_names(&names, &all) {
        let fix = "correct `enabled_channels`";
        return vec![Finding::error(error.message(), fix)];
    }
    let selected = bub_gateway::select_channels(&names, &all);
    let mut findings = Vec::new();
    let is_named = names
        .iter()
        .any(|name| !matches!(name.trim(), "" | "all") && !name.trim().starts_with('!'));
    if selected.is_empty() && is_named {
        findings.push(Finding::error(
            format!(
                "no channel in `enabled_channels` ({}) is set up, so the gateway does not start",
                names.join(", ")
            ),
            "set one up with `bub onboard`, or correct `enabled_channels`",
        ));
    }
    for channel in &selected {
        let name = channel.name();
        let access = channel.access_summary();
        let access = access
            .map(|access| format!("; {access}"))
            .unwrap_or_default();
        // The gateway does not start with a channel that fails this validation.
        let account = match channel.validate_settings() {
            Err(error) => Err(error.message().to_owned()),
            Ok(()) if check_context.is_offline => Ok(None),
            Ok(()) => probe::probe_channel(&**channel).await,
        };
        findings.push(match account {
            Ok(Some(account)) => Finding::ok(format!("{name}: {account}{access}")),
            Ok(None) => Finding::ok(format!("{name}{access}")),
            Err(problem) => Finding::error(
                format!("{name}: {problem}"),
                format!("correct the settings under `{name}`"),
            ),
        });
    }
    let disabled = all
        .iter()
        .filter(|channel| !channel.is_enabled() && channel.role() != ChannelRole::Interface);
    let disabled: Vec<_> = disabled.map(|channel| channel.name()).collect();
    if !disabled.is_empty() {
        findings.push(Finding::ok(format!("not set up: {}", disabled.join(", "))));
    }
    findings
}
