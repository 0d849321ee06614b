//! Lists the plugins and reports those that failed to load or cannot be started.

use bub_kernel::PluginState;
use bub_plugin::InstalledPlugins;

use super::{super::plugin, CheckContext, Finding};

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
        let mut records = installed.plugins.iter();
        let record = records.find(|record| *record.manifest.name == *name);
        let problem = |record| plugin::start_problem(check_context.framework, record);
        let (problem, fix) = match (&status.state, record.zip(record.and_then(problem))) {
            (PluginState::Failed(reason), _) => {
                let fix =
                    format!("correct the reported problem, or run `bub plugin remove {name}`");
                (reason.clone(), fix)
            }
            (_, Some((record, problem))) => {
                let path = bub_plugin::quote_for_shell(&record.pinned);
                (
                    problem,
                    format!("run `bub plugin add {path}` again, or `bub plugin remove {name}`"),
                )
            }
            (_, None) => {
                active.push(name);
                continue;
            }
        };
        let text = format!("{name}: {problem}");
        findings.push(Finding::error(text, fix));
    }
    findings.insert(0, Finding::ok(active.join(", ")));
    findings
}
