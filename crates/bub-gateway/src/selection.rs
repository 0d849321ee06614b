//! Which channels run.

use std::sync::Arc;

use bub_kernel::{Channel, ChannelRole, Error, Result};

/// The channels that a list of names means: `all`, names, `!name` to leave one out.
///
/// `all` is every enabled channel that is no interface. Names bring the background channels with them, unless there are
/// only background channels among them.
pub fn select_channels(names: &[String], channels: &[Arc<dyn Channel>]) -> Vec<Arc<dyn Channel>> {
    let names: Vec<&str> = names
        .iter()
        .map(|name| name.trim())
        .filter(|name| !name.is_empty())
        .collect();
    let is_excluded = |name: &str| {
        names.iter().any(|known| {
            known
                .strip_prefix('!')
                .is_some_and(|known| known.trim() == name)
        })
    };
    let usable = channels
        .iter()
        .filter(|channel| channel.enabled() && !is_excluded(channel.name()));
    if names.contains(&"all") {
        return usable
            .filter(|channel| channel.role() != ChannelRole::Interface)
            .cloned()
            .collect();
    }
    let is_listed = |channel: &&Arc<dyn Channel>| names.contains(&channel.name());
    let mut chosen: Vec<_> = usable.clone().filter(is_listed).cloned().collect();
    if chosen
        .iter()
        .any(|channel| channel.role() != ChannelRole::Lifecycle)
    {
        let background = usable.filter(|channel| channel.role() == ChannelRole::Lifecycle);
        chosen.extend(background.filter(|channel| !is_listed(channel)).cloned());
    }
    chosen
}

/// Refuses names that no channel has.
pub fn check_names(names: &[String], channels: &[Arc<dyn Channel>]) -> Result<()> {
    for name in names
        .iter()
        .map(|name| name.trim().trim_start_matches('!').trim())
    {
        let is_known = name.is_empty()
            || name == "all"
            || channels.iter().any(|channel| channel.name() == name);
        if !is_known {
            let known: Vec<_> = channels.iter().map(|channel| channel.name()).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Err(Error::config(format!(
                "there is no channel `{name}`; there are: {known}"
            )));
        }
    }
    Ok(())
}
