//! Lists the plugins and reports those that failed to load or cannot be started.

use bub_kernel::PluginState;
use bub_plugin::InstalledPlugins;

use super::{
    super::{plugin, sanitize_line},
    CheckContext, Finding,
};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let (mut active, mut findings) = (Vec::new(), Vec::new());
    let installed = InstalledPlugins::load(check_context.settings.home()).unwrap_or_else(|error| {
        findings.push(Finding::error(
            error.message(),
            "correct the file; until then, bub calls no tools",
        ));
        InstalledPlugins::default()
    });
    for status in check_context.framework.plugins() {
        let name = &*status.name;
        let record = installed
            .plugins
            .iter()
            .find(|record| *record.manifest.name == *name);
        let start_problem = record.and_then(|record| {
            Some((
                record,
                plugin::start_problem(check_context.framework, record)?,
            ))
        });
        match (&status.state, start_problem) {
            (PluginState::Failed(reason), _) => findings.push(Finding::error(
                sanitize_line(&format!("{name}: {reason}")),
                format!("correct the reported problem, or run `bub plugin remove {name}`"),
            )),
            (PluginState::Active, Some((record, problem))) => findings.push(Finding::error(
                sanitize_line(&format!("{name}: {problem}")),
                format!(
                    "run `bub plugin add {}` again, or `bub plugin remove {name}`",
                    bub_plugin::quote_for_shell(&record.pinned)
                ),
            )),
            (PluginState::Active, None) => active.push(name),
        }
    }
    findings.insert(0, Finding::ok(active.join(", ")));
    findings
}
