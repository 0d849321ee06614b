//! The plugins, and those that could not be loaded.

use bub_kernel::PluginState;

use super::{Finding, Patient};

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let (mut active, mut findings) = (Vec::new(), Vec::new());
    for plugin in patient.framework.plugins() {
        match &plugin.state {
            PluginState::Active => active.push(&*plugin.name),
            PluginState::Failed(reason) => findings.push(Finding::broken(
                format!("{} is not in use: {reason}", plugin.name),
                "correct what it complains about, or leave it out",
            )),
        }
    }
    findings.insert(0, Finding::fine(active.join(", ")));
    findings
}
