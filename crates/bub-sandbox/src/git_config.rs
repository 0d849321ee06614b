//! The configuration of git: its form, and which of its keys run programs.

use std::{iter::Peekable, str::Chars};

/// Maximum bytes of a configuration of git.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
/// Sections of a repository's configuration, and those of their keys that run no program.
const PLAIN_CONFIG_KEYS: &[(&str, &str)] = &[
    (
        "branch",
        "description gh-merge-base merge pushremote rebase remote vscode-merge-base",
    ),
    ("color", "ui"),
    ("commit", "cleanup gpgsign status verbose"),
    (
        "core",
        "abbrev autocrlf bare bigfilethreshold commitgraph compression eol filemode ignorecase logallrefupdates longpaths multipackindex precomposeunicode preloadindex protecthfs protectntfs quotepath repositoryformatversion safecrlf sharedrepository sparsecheckout sparsecheckoutcone symlinks untrackedcache whitespace worktree",
    ),
    (
        "diff",
        "algorithm colormoved mnemonicprefix noprefix renamelimit renames",
    ),
    (
        "extensions",
        "compatobjectformat objectformat partialclone preciousobjects refstorage relativeworktrees worktreeconfig",
    ),
    (
        "fetch",
        "parallel prune prunetags recursesubmodules writecommitgraph",
    ),
    (
        "gc",
        "auto autodetach autopacklimit pruneexpire reflogexpire",
    ),
    ("http", "postbuffer version"),
    ("index", "skiphash sparse threads version"),
    ("init", "defaultbranch"),
    ("lfs", "access locksverify repositoryformatversion"),
    ("merge", "conflictstyle ff log renamelimit renames stat"),
    ("pull", "ff rebase"),
    ("push", "autosetupremote default followtags"),
    ("rebase", "autosquash autostash updaterefs"),
    (
        "receive",
        "denycurrentbranch denydeletes denynonfastforwards",
    ),
    (
        "remote",
        "fetch gh-resolved mirror partialclonefilter promisor prune prunetags pushdefault pushurl tagopt url",
    ),
    ("rerere", "autoupdate enabled"),
    ("status", "showuntrackedfiles submodulesummary"),
    (
        "submodule",
        "active branch fetchrecursesubmodules ignore recurse shallow update url",
    ),
    ("tag", "gpgsign sort"),
    ("user", "email name signingkey useconfigonly"),
];
/// Sections, and those of their keys whose value is a program or a command line. A section without keys has only such.
const RUN_CONFIG_KEYS: &[(&str, &str)] = &[
    ("browser", "cmd path"),
    (
        "core",
        "alternaterefscommand askpass editor fsmonitor gitproxy pager sshcommand",
    ),
    ("credential", "helper"),
    ("diff", "command external textconv"),
    ("difftool", "cmd path"),
    ("filter", "clean process smudge"),
    ("gpg", "defaultkeycommand program"),
    ("guitool", "cmd"),
    ("hook", "command"),
    ("imap", "tunnel"),
    ("interactive", "difffilter"),
    ("lfs", "clean path smudge"),
    ("man", "cmd path"),
    ("merge", "driver"),
    ("mergetool", "cmd path"),
    ("pager", ""),
    ("remote", "receivepack uploadpack"),
    ("sendemail", "cccmd headercmd sendmailcmd smtpserver tocmd"),
    ("sequence", "editor"),
    ("tar", "command"),
    ("trailer", "cmd command"),
    ("uploadpack", "packobjectshook"),
];
/// The key that names the directory with hooks.
pub(crate) const HOOKS_KEY: &str = "hookspath";
/// The key that names the working tree of a git directory elsewhere.
pub(crate) const WORKTREE_KEY: &str = "worktree";

/// Returns whether a value of git's configuration runs no program.
pub(crate) fn is_plain_entry(section: &str, key: &str, value: &str) -> bool {
    has_key(PLAIN_CONFIG_KEYS, section, key) && !value.starts_with('!') && !names_helper(value)
}

/// Returns whether git runs a value of its configuration as a program or a command line.
pub(crate) fn is_run_entry(section: &str, key: &str, value: &str) -> bool {
    has_key(RUN_CONFIG_KEYS, section, key) || value.starts_with('!') || names_helper(value)
}

fn has_key(known: &[(&str, &str)], section: &str, key: &str) -> bool {
    let mut sections = known.iter();
    sections.any(|(name, keys)| {
        let mut keys = keys.split(' ').filter(|known| !known.is_empty()).peekable();
        name.eq_ignore_ascii_case(section)
            && (keys.peek().is_none() || keys.any(|known| known.eq_ignore_ascii_case(key)))
    })
}

/// Returns whether an address names a program that git starts to reach it, as in `ext::command`.
fn names_helper(address: &str) -> bool {
    let helper = address.split_once("::").map(|(helper, _)| helper);
    helper.is_some_and(|helper| !helper.contains(['/', ':', '[']))
}

/// Parses a configuration of git: section without its subsection, key and value. Section and key are in lower case.
pub(crate) fn parse(text: &str) -> Vec<(String, String, String)> {
    let mut entries = Vec::new();
    let mut section = String::new();
    let mut rest = text.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(first) = rest.next() {
        match first {
            '[' => section = parse_section(&mut rest),
            '#' | ';' => drop(rest.by_ref().find(|c| *c == '\n')),
            first if first.is_ascii_alphanumeric() => {
                let mut key = String::from(first.to_ascii_lowercase());
                let is_key = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
                while let Some(next) = rest.next_if(is_key) {
                    key.push(next.to_ascii_lowercase());
                }
                while rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
                let has_value = rest.next_if_eq(&'=').is_some();
                let value = has_value.then(|| parse_value(&mut rest));
                entries.push((section.clone(), key, value.unwrap_or_default()));
            }
            _ => {}
        }
    }
    entries
}

/// Parses the rest of a section's header. The name ends at a period or a blank; the subsection may contain brackets.
fn parse_section(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut name = String::new();
    let (mut is_name, mut is_quoted) = (true, false);
    while let Some(next) = rest.next() {
        match next {
            '\\' if is_quoted => drop(rest.next()),
            '"' => is_quoted = !is_quoted,
            ']' if !is_quoted => break,
            '\n' => break,
            _ => {}
        }
        is_name &= next.is_ascii_alphanumeric() || next == '-';
        if is_name {
            name.push(next.to_ascii_lowercase());
        }
    }
    name
}

/// Parses a value to the end of its line. Quotes protect comments, and a backslash continues the line.
fn parse_value(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut value = String::new();
    let mut is_quoted = false;
    while let Some(next) = rest.next() {
        match next {
            '\n' => break,
            '"' => is_quoted = !is_quoted,
            '#' | ';' if !is_quoted => {
                rest.find(|c| *c == '\n');
                break;
            }
            '\\' => match rest.next() {
                Some('\r') => drop(rest.next_if_eq(&'\n')),
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some('\n' | 'b') | None => {}
                Some(escaped) => value.push(escaped),
            },
            next => value.push(next),
        }
    }
    value.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_as_git_reads_it() {
        let text = "\u{feff}[Core] bare = false # x\n\thooksPath = \"a b\" ; c\n[filter \"x]\\\"y\"]\nclean = sh \\\n  ./s/x\n\
            [alias.z]\nq=!\"s/x\\\\ #\" \\\"y\\\"\nflag\n[include]path=~/x\r\n";
        let expected = [
            ("core", "bare", "false"),
            ("core", "hookspath", "a b"),
            ("filter", "clean", "sh   ./s/x"),
            ("alias", "q", "!s/x\\ # \"y\""),
            ("alias", "flag", ""),
            ("include", "path", "~/x"),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(parse(text), expected);
    }
}
