//! Asks the user whether to trust a workspace, and describes what the trust is about.

use std::fmt::Write;

use bub_kernel::Result;
use bub_settings::{TrustItem, TrustItemKind, TrustReport, WorkspaceTrust, is_sensitive_name};

use crate::{
    output,
    prompt::{self, print_stderr},
};

/// Maximum number of names and files shown for an item.
const MAX_SHOWN_COUNT: usize = 20;

/// Asks the user whether to trust a workspace, and stores the answer. Blocks the thread.
pub(crate) fn ask_user(trust: &WorkspaceTrust, report: &mut TrustReport) -> Result<()> {
    let workspace = output::sanitize_line(&report.workspace.to_string_lossy());
    let items = describe_items(report, false);
    print_stderr(&format!(
        "{workspace} has files that change how bub works:\n{items}\
         If you do not trust their author, answer no: bub then ignores them, except AGENTS.md.\n"
    ));
    let is_trusted = prompt::confirm_blocking("Trust these files?", false)?;
    if !is_trusted {
        print_stderr("bub ignores these files. To trust them later, run `bub trust`.\n");
    }
    if let Err(error) = trust.remember(report, is_trusted) {
        tracing::warn!(%error, "trust.write_failed");
    }
    Ok(())
}

/// Returns a line for each file or directory that trust is about: its path, its effect, and the names in it. With
/// `has_files`, a line for each file in a directory follows.
pub fn describe_items(report: &TrustReport, has_files: bool) -> String {
    let path =
        |item: &TrustItem| output::sanitize_line(&report.relative_path(item).to_string_lossy());
    let width = report.items.iter().map(|item| path(item).chars().count());
    let width = width.max().unwrap_or_default();
    let mut text = String::new();
    for item in &report.items {
        let _ = write!(text, "  {:width$}  {}", path(item), item.kind.effect());
        if !item.names.is_empty() {
            // What bub itself reads comes first, and is always shown.
            let is_own =
                |name: &&String| item.kind == TrustItemKind::Settings && is_own_variable(name);
            let (own, other): (Vec<_>, Vec<_>) = item.names.iter().partition(is_own);
            let shown = |names: Vec<&String>| -> Vec<_> {
                let names = names.into_iter();
                names.map(|name| output::sanitize_line(name)).collect()
            };
            let names = [shown(own), first_of(&shown(other))].concat();
            let _ = write!(text, ": {}", names.join(", "));
        }
        if let Err(reason) = &item.digest {
            let _ = write!(text, " ({reason})");
        }
        text.push('\n');
        let files = item
            .files
            .iter()
            .filter(|file| **file != item.path && file.is_file());
        let files = files.map(|file| {
            let file = file.strip_prefix(&item.path).unwrap_or(file);
            output::sanitize_line(&file.to_string_lossy())
        });
        for file in first_of(&files.filter(|_| has_files).collect::<Vec<_>>()) {
            let _ = writeln!(text, "    {file}");
        }
    }
    text
}

/// Returns whether bub may read a variable: its settings, and keys, addresses and proxies of providers.
fn is_own_variable(name: &str) -> bool {
    const ENDS: [&str; 4] = ["_PROXY", "_BASE", "_BASE_URL", "_HOST"];
    let name = name.to_ascii_uppercase();
    name.starts_with("BUB_")
        || is_sensitive_name(&name)
        || ENDS.iter().any(|end| name.ends_with(end))
}

/// Returns the first texts, and how many others there are.
fn first_of(texts: &[String]) -> Vec<String> {
    let mut first: Vec<_> = texts.iter().take(MAX_SHOWN_COUNT).cloned().collect();
    if texts.len() > MAX_SHOWN_COUNT {
        first.push(format!("and {} more", texts.len() - MAX_SHOWN_COUNT));
    }
    first
}
