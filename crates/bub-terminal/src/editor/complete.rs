//! Completion of the word at the cursor.

use std::path::PathBuf;

use bub_kernel::command_prefix;

/// Maximum number of files that are completed.
const MAX_FILE_COUNT: usize = 200;

/// A word that Tab can complete, with its description.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionItem {
    /// The word without its `,` or `$`.
    pub text: String,
    /// Description shown beside the word.
    pub about: String,
    /// Arguments that may follow the word, such as `path [offset]`.
    pub arguments: String,
}

/// All words that Tab can complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionItems {
    /// Commands, completed after a comma or a slash.
    pub commands: Vec<CompletionItem>,
    /// Skills, completed after `$` and `,skill`.
    pub skills: Vec<CompletionItem>,
    /// Session ids, completed after `,resume`.
    pub sessions: Vec<CompletionItem>,
    /// The directory in which files are completed after `@`.
    pub workspace: PathBuf,
}

/// The words that match the text at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionMatches {
    /// Byte offset in the line at which the completed word starts.
    pub from: usize,
    /// The matching words, in the order of [`CompletionItems`].
    pub items: Vec<CompletionItem>,
}

impl CompletionItems {
    /// Returns the words that complete the text before the cursor, or `None` if no word matches. With `is_shell`, a
    /// line is a command even without a comma.
    pub fn find_matches(&self, before: &str, is_shell: bool) -> Option<CompletionMatches> {
        let start = before
            .trim_end_matches(|letter: char| !letter.is_whitespace())
            .len();
        let word = before.get(start..)?;
        let line = before.trim_start();
        if let Some(name) = word.strip_prefix('$') {
            return filter_items(&self.skills, name, start + 1);
        }
        if let Some(path) = word.strip_prefix('@') {
            return self.find_files(path, start + 1);
        }
        let is_first = line.len() == word.len();
        if is_first && let Some(name) = strip_command_prefix(word) {
            return filter_items(&self.commands, name, before.len() - name.len());
        }
        if is_first && is_shell && !word.is_empty() {
            return filter_items(&self.commands, word, start);
        }
        let command = strip_command_prefix(line);
        let command = command.or(is_shell.then_some(line))?;
        let name = command.split_whitespace().next()?;
        match name {
            _ if command.len() == name.len() => None,
            "skill" => filter_items(&self.skills, word, start),
            "resume" => filter_items(&self.sessions, word, start),
            _ => None,
        }
    }

    /// Returns the files and directories that start with `path`. A directory ends with a slash. Hidden files need a dot.
    fn find_files(&self, path: &str, from: usize) -> Option<CompletionMatches> {
        let (directory, name) = path
            .rsplit_once('/')
            .map_or(("", path), |(directory, name)| {
                (path.get(..=directory.len()).unwrap_or_default(), name)
            });
        let listed = std::fs::read_dir(self.workspace.join(directory)).ok()?;
        let item = |file: std::fs::DirEntry| {
            let file_name = file.file_name().into_string().ok()?;
            let is_hidden = file_name.starts_with('.') && !name.starts_with('.');
            let is_match = !is_hidden && !file_name.contains(char::is_whitespace);
            let end = if file.path().is_dir() { "/" } else { "" };
            is_match.then(|| CompletionItem {
                text: format!("{directory}{file_name}{end}"),
                ..CompletionItem::default()
            })
        };
        let mut items: Vec<_> = listed.flatten().filter_map(item).collect();
        items.sort_by(|left, right| left.text.cmp(&right.text));
        let mut matches = filter_items(&items, path, from)?;
        matches.items.truncate(MAX_FILE_COUNT);
        Some(matches)
    }

    /// Returns the arguments of a command if `text` is that command followed by one space. Returns `None` if the
    /// command has no arguments.
    pub fn arguments_hint(&self, text: &str, is_shell: bool) -> Option<&str> {
        let command = strip_command_prefix(text);
        let command = command.or(is_shell.then_some(text))?;
        let command = command.strip_suffix(' ')?;
        let item = self.commands.iter().find(|word| word.text == command)?;
        Some(item.arguments.as_str()).filter(|arguments| !arguments.is_empty())
    }
}

/// Returns the text after the prefix of commands or after a slash.
fn strip_command_prefix(text: &str) -> Option<&str> {
    text.strip_prefix(command_prefix())
        .or_else(|| text.strip_prefix('/'))
}

/// Returns the items that start with `prefix`, or `None` if no item does. Case is ignored.
fn filter_items(items: &[CompletionItem], prefix: &str, from: usize) -> Option<CompletionMatches> {
    let prefix = prefix.to_lowercase();
    let is_match = |word: &&CompletionItem| word.text.to_lowercase().starts_with(&prefix);
    let items: Vec<CompletionItem> = items.iter().filter(is_match).cloned().collect();
    (!items.is_empty()).then_some(CompletionMatches { from, items })
}

/// Returns the longest prefix that all words share.
pub fn common_prefix(items: &[CompletionItem]) -> &str {
    let Some((first, rest)) = items.split_first() else {
        return "";
    };
    let mut common = first.text.as_str();
    for word in rest {
        let shared = common
            .chars()
            .zip(word.text.chars())
            .take_while(|(left, right)| left == right);
        let length = shared.map(|(letter, _)| letter.len_utf8()).sum::<usize>();
        common = common.get(..length).unwrap_or_default();
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> CompletionItems {
        let word = |text: &str, arguments: &str| CompletionItem {
            text: text.to_owned(),
            about: String::new(),
            arguments: arguments.to_owned(),
        };
        CompletionItems {
            commands: vec![
                word("tape.info", ""),
                word("tape.handoff", "[name] [summary]"),
                word("skill", "name"),
            ],
            skills: vec![word("telegram", ""), word("Notes", "")],
            sessions: vec![word("cli:local", ""), word("cli:local~1", "")],
            workspace: PathBuf::new(),
        }
    }

    // H-155: completes `,<tool>` names and ignores case.
    #[test]
    fn words_are_found_where_they_belong() {
        let rows = [
            (",ta", false, Some((1, vec!["tape.info", "tape.handoff"]))),
            ("/ta", false, Some((1, vec!["tape.info", "tape.handoff"]))),
            (",TAPE.I", false, Some((1, vec!["tape.info"]))),
            ("ta", true, Some((0, vec!["tape.info", "tape.handoff"]))),
            ("ta", false, None),
            ("see ,ta", false, None),
            ("use $no", false, Some((5, vec!["Notes"]))),
            ("你好 $t", false, Some((8, vec!["telegram"]))),
            (",skill te", false, Some((7, vec!["telegram"]))),
            (",skill ", false, Some((7, vec!["telegram", "Notes"]))),
            (
                ",resume ",
                false,
                Some((8, vec!["cli:local", "cli:local~1"])),
            ),
            (",resume cli:local~", false, Some((8, vec!["cli:local~1"]))),
            (",resume", false, None),
            (",nothing", false, None),
            ("", false, None),
        ];
        for (before, is_shell, expected) in rows {
            let matches = items().find_matches(before, is_shell);
            let matches = matches.map(|matches| {
                (
                    matches.from,
                    matches
                        .items
                        .into_iter()
                        .map(|word| word.text)
                        .collect::<Vec<_>>(),
                )
            });
            let expected = expected
                .map(|(from, items)| (from, items.into_iter().map(str::to_owned).collect()));
            assert_eq!(matches, expected, "{before:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        for name in ["src/a.rs", "src/b.rs", "six.txt", ".hidden"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let files = CompletionItems {
            workspace: dir.path().to_owned(),
            ..items()
        };
        let found = |before: &str| {
            let matches = files.find_matches(before, false)?;
            let texts = matches.items.into_iter().map(|item| item.text);
            Some((matches.from, texts.collect::<Vec<_>>()))
        };
        assert_eq!(
            found("see @s"),
            Some((5, vec!["six.txt".to_owned(), "src/".to_owned()]))
        );
        assert_eq!(found("@src/b"), Some((1, vec!["src/b.rs".to_owned()])));
        assert_eq!(found("@.h"), Some((1, vec![".hidden".to_owned()])));
        assert_eq!((found("@none"), found("@none/x")), (None, None));
        assert_eq!(common_prefix(&items().commands[..2]), "tape.");
        assert_eq!(
            items().arguments_hint(",tape.handoff ", false),
            Some("[name] [summary]")
        );
        assert_eq!(items().arguments_hint(",tape.info ", false), None);
    }
}
