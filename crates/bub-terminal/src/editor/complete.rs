//! What the word at the cursor could become.

/// Something that can be typed, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionItem {
    /// The word, without its sign.
    pub text: String,
    /// What is shown beside it.
    pub about: String,
    /// What may follow it, as in `path [offset]`.
    pub arguments: String,
}

/// All that can be completed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionItems {
    /// What can follow a comma.
    pub commands: Vec<CompletionItem>,
    /// What can follow `$`.
    pub skills: Vec<CompletionItem>,
    /// What can follow `,resume`.
    pub sessions: Vec<CompletionItem>,
}

/// The words that fit at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionMatches {
    /// Where the part begins that is replaced.
    pub from: usize,
    /// The words, in order.
    pub words: Vec<CompletionItem>,
}

impl CompletionItems {
    /// What fits before the cursor. `is_shell`: the line is a command also without its comma.
    pub fn complete(&self, before: &str, is_shell: bool) -> Option<CompletionMatches> {
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let start = (start..before.len())
            .find(|at| before.is_char_boundary(*at))
            .unwrap_or(before.len());
        let word = before.get(start..)?;
        let line = before.trim_start();
        if let Some(name) = word.strip_prefix('$') {
            return filter_items(&self.skills, name, start + 1);
        }
        let is_first = line.len() == word.len();
        if is_first && let Some(name) = word.strip_prefix(',') {
            return filter_items(&self.commands, name, start + 1);
        }
        if is_first && is_shell && !word.is_empty() {
            return filter_items(&self.commands, word, start);
        }
        let command = line.strip_prefix(',').or(is_shell.then_some(line))?;
        let name = command
            .split_whitespace()
            .next()
            .filter(|name| command.len() > name.len())?;
        match name {
            "skill" => filter_items(&self.skills, word, start),
            "resume" => filter_items(&self.sessions, word, start),
            _ => None,
        }
    }

    /// What may follow a command that has been typed, and only that.
    pub fn arguments(&self, text: &str, is_shell: bool) -> Option<&str> {
        let command = text
            .strip_prefix(',')
            .or(is_shell.then_some(text))?
            .strip_suffix(' ')?;
        let known = self.commands.iter().find(|word| word.text == command)?;
        Some(known.arguments.as_str()).filter(|arguments| !arguments.is_empty())
    }
}

fn filter_items(words: &[CompletionItem], typed: &str, from: usize) -> Option<CompletionMatches> {
    let typed = typed.to_lowercase();
    let fits = |word: &&CompletionItem| word.text.to_lowercase().starts_with(&typed);
    let words: Vec<CompletionItem> = words.iter().filter(fits).cloned().collect();
    (!words.is_empty()).then_some(CompletionMatches { from, words })
}

/// The longest beginning that all words have in common.
pub fn common(words: &[CompletionItem]) -> &str {
    let Some((first, rest)) = words.split_first() else {
        return "";
    };
    let mut common = first.text.as_str();
    for word in rest {
        let same = common
            .chars()
            .zip(word.text.chars())
            .take_while(|(one, other)| one == other);
        let length = same.map(|(letter, _)| letter.len_utf8()).sum::<usize>();
        common = common.get(..length).unwrap_or_default();
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> CompletionItems {
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
        }
    }

    // H-155: over `,<tool>` names, whatever their case
    #[test]
    fn words_are_found_where_they_belong() {
        let rows = [
            (",ta", false, Some((1, vec!["tape.info", "tape.handoff"]))),
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
            let found = words().complete(before, is_shell);
            let found = found.map(|found| {
                (
                    found.from,
                    found
                        .words
                        .into_iter()
                        .map(|word| word.text)
                        .collect::<Vec<_>>(),
                )
            });
            let expected = expected
                .map(|(from, words)| (from, words.into_iter().map(str::to_owned).collect()));
            assert_eq!(found, expected, "{before:?}");
        }
        assert_eq!(common(&words().commands[..2]), "tape.");
        assert_eq!(
            words().arguments(",tape.handoff ", false),
            Some("[name] [summary]")
        );
        assert_eq!(words().arguments(",tape.info ", false), None);
    }
}
