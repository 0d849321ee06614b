//! Selects the channels that a gateway runs.

use std::sync::Arc;

use bub_kernel::{Channel, ChannelRole, Error, Result};

/// Returns the enabled channels that a list of names selects. A name is `all`, a channel, or `!name` to exclude a
/// channel.
///
/// `all` selects every channel that is not an interface ([`ChannelRole::Interface`]). A list of channels also selects
/// the background channels ([`ChannelRole::Lifecycle`]), unless it contains only background channels.
pub fn select_channels(names: &[String], channels: &[Arc<dyn Channel>]) -> Vec<Arc<dyn Channel>> {
    let names: Vec<&str> = names
        .iter()
        .map(|name| name.trim())
        .filter(|name| !name.is_empty())
        .collect();
    let is_excluded = |name: &str| {
        names.iter().any(|entry| {
            entry
                .strip_prefix('!')
                .is_some_and(|excluded| excluded.trim() == name)
        })
    };
    let candidates = channels
        .iter()
        .filter(|channel| channel.is_enabled() && !is_excluded(channel.name()));
    if names.contains(&"all") {
        return candidates
            .filter(|channel| channel.role() != ChannelRole::Interface)
            .cloned()
            .collect();
    }
    let is_listed = |channel: &&Arc<dyn Channel>| names.contains(&channel.name());
    let mut selected: Vec<_> = candidates.clone().filter(is_listed).cloned().collect();
    if selected
        .iter()
        .any(|channel| channel.role() != ChannelRole::Lifecycle)
    {
        let background = candidates.filter(|channel| channel.role() == ChannelRole::Lifecycle);
        selected.extend(background.filter(|channel| !is_listed(channel)).cloned());
    }
    selected
}

/// Checks that each name is `all` or the name of a channel. Names after `!` need not exist, as in the Python version.
pub fn check_channel_names(names: &[String], channels: &[Arc<dyn Channel>]) -> Result<()> {
    for name in names.iter().map(|name| name.trim()) {
        let is_known = name.is_empty()
            || name.starts_with('!')
            || name == "all"
            || channels.iter().any(|channel| channel.name() == name);
        if !is_known {
            let available: Vec<_> = channels.iter().map(|channel| channel.name()).collect();
            let available = if available.is_empty() {
                "none".to_owned()
            } else {
                available.join(", ")
            };
            return Err(Error::config(format!(
                "unknown channel `{name}`; available channels: {available}"
            )));
        }
    }
    Ok(())
}
