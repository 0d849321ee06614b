//! Asks the user whether to trust a workspace, and describes what the trust is about.

use std::fmt::Write;

use bub_kernel::Result;
use bub_model::Catalog;
use bub_settings::{
    Section, TrustItem, TrustItemKind, TrustReport, WorkspaceTrust, is_sensitive_name,
};

use crate::{
    core_sections, output,
    prompt::{self, print_stderr},
};

/// Maximum number of names and files shown for an item.
const MAX_SHOWN_COUNT: usize = 20;
/// How much of a name is shown.
const MAX_NAME_CHARS: usize = 60;
/// Variables that bub reads and that are no settings.
const OTHER_VARIABLES: [&str; 5] = [
    "ALL_PROXY",
    "BUB_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Asks the user whether to trust a workspace, and stores the answer. `sections` are the settings of plugins. Blocks the
/// thread.
pub(crate) fn ask_user(
    trust: &WorkspaceTrust,
    report: &mut TrustReport,
    sections: &[Section],
) -> Result<()> {
    let workspace = output::sanitize_line(&report.workspace.to_string_lossy());
    let items = describe_items_with(report, false, sections);
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
    describe_items_with(report, has_files, &[])
}

fn describe_items_with(report: &TrustReport, has_files: bool, sections: &[Section]) -> String {
    let path =
        |item: &TrustItem| output::sanitize_line(&report.relative_path(item).to_string_lossy());
    let width = report.items.iter().map(|item| path(item).chars().count());
    let width = width.max().unwrap_or_default();
    let mut text = String::new();
    for item in &report.items {
        let _ = write!(text, "  {:width$}  {}", path(item), item.kind.effect());
        if !item.names.is_empty() {
            let _ = write!(text, ": {}", shown_names(item, sections).join(", "));
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

/// Returns the names in an item. Of a `.env`, settings and keys that bub knows come first, and all of them are shown. A
/// `.env` cannot hide them behind names that it invents.
fn shown_names(item: &TrustItem, sections: &[Section]) -> Vec<String> {
    let shown = |names: Vec<&String>| -> Vec<_> {
        let names = names.into_iter();
        names
            .map(|name| shorten(&output::sanitize_line(name)))
            .collect()
    };
    if item.kind != TrustItemKind::Settings {
        return first_of(&shown(item.names.iter().collect()));
    }
    let sections: Vec<_> = core_sections().chain(sections.iter().cloned()).collect();
    let catalog = Catalog::built_in();
    let (known, rest): (Vec<_>, Vec<_>) = item
        .names
        .iter()
        .partition(|name| is_known_variable(&sections, &catalog, name));
    let (possible, other): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|name| is_own_variable(name));
    let groups = [
        shown(known),
        first_of(&shown(possible)),
        first_of(&shown(other)),
    ];
    groups.concat()
}

/// Returns whether a variable is that of a setting, of a built-in provider, of a proxy, or of bub's home.
fn is_known_variable(sections: &[Section], catalog: &Catalog, name: &str) -> bool {
    let is_provider = |provider: &str| catalog.get(provider).is_some();
    let mut sections = sections.iter();
    let is_same = |variable: &str| variable.eq_ignore_ascii_case(name);
    OTHER_VARIABLES.into_iter().any(is_same)
        || sections.any(|section| section.has_variable(name, is_provider))
        || catalog.iter().any(|provider| {
            let mut keys = provider.key_variables.iter();
            keys.any(|key| is_same(key)) || is_same(&provider.base_variable())
        })
}

/// Returns whether bub may read another variable: settings, keys and addresses of plugins and custom providers.
fn is_own_variable(name: &str) -> bool {
    const ENDS: [&str; 4] = ["_PROXY", "_BASE", "_BASE_URL", "_HOST"];
    let name = name.to_ascii_uppercase();
    name.starts_with("BUB_")
        || is_sensitive_name(&name)
        || ENDS.iter().any(|end| name.ends_with(end))
}

/// Returns the beginning of a long name.
fn shorten(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

/// Returns the first texts, and how many others there are.
fn first_of(texts: &[String]) -> Vec<String> {
    let mut first: Vec<_> = texts.iter().take(MAX_SHOWN_COUNT).cloned().collect();
    if texts.len() > MAX_SHOWN_COUNT {
        first.push(format!("and {} more", texts.len() - MAX_SHOWN_COUNT));
    }
    first
}
