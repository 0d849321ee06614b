//! The plugins, and those that could not be loaded or would not be started.

use bub_kernel::PluginState;
use bub_plugin::Installed;

use super::{
    super::{one_line, plugin},
    Finding, Patient,
};

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let (mut active, mut findings) = (Vec::new(), Vec::new());
    let installed = Installed::load(patient.settings.home()).unwrap_or_else(|error| {
        findings.push(Finding::broken(
            error.message(),
            "until then no tool is called",
        ));
        Installed::default()
    });
    for status in patient.framework.plugins() {
        let name = &*status.name;
        let record = installed
            .plugins
            .iter()
            .find(|record| *record.manifest.name == *name);
        let found =
            record.and_then(|record| Some((record, plugin::problem(patient.framework, record)?)));
        match (&status.state, found) {
            (PluginState::Failed(reason), _) => findings.push(Finding::broken(
                one_line(&format!("{name} is not in use: {reason}")),
                "correct what it complains about, or leave it out",
            )),
            (PluginState::Active, Some((record, problem))) => findings.push(Finding::broken(
                one_line(&format!("{name} is not in use: {problem}")),
                format!(
                    "`bub plugin add {}`, or `bub plugin remove {name}`",
                    bub_plugin::quoted(&record.pinned)
                ),
            )),
            (PluginState::Active, None) => active.push(name),
        }
    }
    findings.insert(0, Finding::fine(active.join(", ")));
    findings
}
