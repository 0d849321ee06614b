//! The plugins, and those that could not be loaded or would not be started.

use bub_kernel::PluginState;
use bub_plugin::InstalledPlugins;

use super::{
    super::{one_line, plugin},
    CheckContext, Finding,
};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let (mut active, mut findings) = (Vec::new(), Vec::new());
    let installed = InstalledPlugins::load(check_context.settings.home()).unwrap_or_else(|error| {
        findings.push(Finding::error(
            error.message(),
            "until then no tool is called",
        ));
        InstalledPlugins::default()
    });
    for status in check_context.framework.plugins() {
        let name = &*status.name;
        let record = installed
            .plugins
            .iter()
            .find(|record| *record.manifest.name == *name);
        let found = record
            .and_then(|record| Some((record, plugin::problem(check_context.framework, record)?)));
        match (&status.state, found) {
            (PluginState::Failed(reason), _) => findings.push(Finding::error(
                one_line(&format!("{name} is not in use: {reason}")),
                "correct what it complains about, or leave it out",
            )),
            (PluginState::Active, Some((record, problem))) => findings.push(Finding::error(
                one_line(&format!("{name} is not in use: {problem}")),
                format!(
                    "`bub plugin add {}`, or `bub plugin remove {name}`",
                    bub_plugin::quoted(&record.pinned)
                ),
            )),
            (PluginState::Active, None) => active.push(name),
        }
    }
    findings.insert(0, Finding::ok(active.join(", ")));
    findings
}
