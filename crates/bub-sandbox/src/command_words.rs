//! The words of a command line in git's configuration that may be paths.
//!
//! A shell reads most of these values. Only the shell knows what a variable or a command in the value becomes. Of these,
//! bub knows `$HOME`, and takes the output of a command and the variables of git for the working tree.

use std::{collections::BTreeSet, iter::Peekable, path::Path, str::Chars};

/// Stands for the working tree, or a directory above it.
const TREE: char = '\u{1}';
/// Stands for a text that is unknown.
const UNKNOWN: char = '\u{2}';
/// Variables that git sets to a path in the working tree, or that are such a path.
const TREE_VARIABLES: &[&str] = &["GIT_DIR", "GIT_PREFIX", "GIT_WORK_TREE", "OLDPWD", "PWD"];
/// Programs and words of the shell that a program follows.
const PREFIXES: &[&str] = &[
    "command", "do", "elif", "else", "env", "exec", "if", "nice", "nohup", "sudo", "then", "time",
    "until", "while", "xargs",
];
/// Shells, which run the command line after `-c`.
const SHELLS: &[&str] = &["bash", "dash", "ksh", "sh", "zsh"];
/// Programs that run the file which is their first argument, without digits at the end.
const INTERPRETERS: &[&str] = &[
    ".", "bash", "dash", "ksh", "lua", "node", "perl", "php", "python", "ruby", "sh", "source",
    "zsh",
];
/// Extensions of files that interpreters run.
const SCRIPT_EXTENSIONS: &[&str] = &[
    "bash", "js", "lua", "mjs", "php", "pl", "py", "rb", "sh", "ts", "zsh",
];

/// What a word of a command line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WordKind {
    /// A word without a slash: a program in `PATH` or an argument, unless there is such a file.
    Word,
    /// An argument that looks like a path.
    Argument,
    /// The path of a program, or of a file that an interpreter runs.
    Program,
}

/// Returns the words of a value that may be paths, also those of nested command lines.
pub(crate) fn command_words(value: &str, home: Option<&Path>) -> BTreeSet<(String, WordKind)> {
    let value = value.trim_start_matches('!');
    let mut words = BTreeSet::new();
    // Git starts some programs without a shell. Their paths can contain blanks.
    if value.contains(char::is_whitespace) {
        words.insert((value.to_owned(), argument_kind(value)));
    }
    let mut waiting = vec![value.to_owned()];
    while let Some(line) = waiting.pop() {
        for command in split(&line, home, &mut waiting) {
            add_command(&command, &mut words, &mut waiting);
        }
    }
    words.retain(|(word, _)| !word.is_empty());
    words
}

/// Where in a command a word is.
enum Position {
    Program,
    /// After an interpreter. The flag is whether it is a shell.
    Script(bool),
    CommandLine,
    Argument,
}

fn add_command(
    command: &[String],
    words: &mut BTreeSet<(String, WordKind)>,
    waiting: &mut Vec<String>,
) {
    let mut position = Position::Program;
    for word in command {
        let is_option = word.starts_with('-');
        position = match position {
            Position::Program if is_option || is_assignment(word) => Position::Program,
            Position::Program => {
                let has_slash = word.contains('/');
                let kind = if has_slash {
                    WordKind::Program
                } else {
                    WordKind::Word
                };
                add_word(word, kind, words);
                match interpreter_name(word) {
                    "eval" => Position::CommandLine,
                    name if PREFIXES.contains(&name) => Position::Program,
                    name if INTERPRETERS.contains(&name) => {
                        Position::Script(SHELLS.contains(&name))
                    }
                    _ => Position::Argument,
                }
            }
            Position::Script(true) if is_option && word.ends_with('c') => Position::CommandLine,
            // Code, or the name of a module.
            Position::Script(false) if is_option && word.ends_with(['c', 'e', 'm']) => {
                Position::Argument
            }
            Position::Script(is_shell) if is_option => Position::Script(is_shell),
            Position::Script(_) => {
                add_word(word, WordKind::Program, words);
                Position::Argument
            }
            Position::CommandLine => {
                waiting.push(word.clone());
                Position::CommandLine
            }
            Position::Argument => {
                add_word(word, argument_kind(word), words);
                Position::Argument
            }
        };
        // As in `ext::./program`, `--file=./file` and `-F./file`.
        let address = word.rsplit_once("::").map(|(_, path)| path);
        let assigned = word.split_once('=').map(|(_, path)| path);
        let option = word.strip_prefix('-').and_then(|option| option.get(1..));
        for part in [address, assigned, option].into_iter().flatten() {
            add_word(part, argument_kind(part), words);
        }
        for part in word.split(|c: char| c.is_whitespace() || "'\"=,:".contains(c)) {
            add_word(part, argument_kind(part).min(WordKind::Argument), words);
        }
    }
}

/// Adds a word, or what follows the parts of it that only the shell knows.
fn add_word(word: &str, kind: WordKind, words: &mut BTreeSet<(String, WordKind)>) {
    let Some((before, tail)) = word.rsplit_once([TREE, UNKNOWN]) else {
        words.insert((word.to_owned(), kind));
        return;
    };
    let is_below_tree = before.is_empty() && word.starts_with(TREE) && tail.starts_with('/');
    let mut rest = Some(tail.trim_start_matches('/'));
    let mut kind = if is_below_tree {
        kind
    } else {
        kind.min(WordKind::Argument)
    };
    // What the shell puts before the rest may be any directory above.
    while let Some(path) = rest {
        words.insert((path.to_owned(), kind));
        kind = kind.min(WordKind::Argument);
        rest = path.split_once('/').map(|(_, rest)| rest);
    }
}

fn argument_kind(word: &str) -> WordKind {
    let extension = Path::new(word).extension().unwrap_or_default();
    let is_script = SCRIPT_EXTENSIONS.iter().any(|known| extension == *known);
    let is_explicit = ["./", "../"].iter().any(|start| word.starts_with(start));
    if is_explicit || is_script && !word.starts_with('-') {
        WordKind::Program
    } else if word.contains('/') {
        WordKind::Argument
    } else {
        WordKind::Word
    }
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

/// Returns the name of a program without its directory and version.
fn interpreter_name(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or_default();
    let short = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if short.is_empty() { name } else { short }
}

/// Splits a line into commands and their words, as a shell does. Adds the commands whose output is part of it to `nested`.
fn split(line: &str, home: Option<&Path>, nested: &mut Vec<String>) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut quote) = (String::new(), None);
    let mut rest = line.chars().peekable();
    let mut end_word = |word: &mut String, is_last: bool| {
        if !word.is_empty() {
            let word = std::mem::take(word);
            if let Some(command) = commands.last_mut() {
                command.push(word);
            }
        }
        if is_last {
            commands.push(Vec::new());
        }
    };
    while let Some(next) = rest.next() {
        match next {
            '\'' | '"' if quote.is_none() => quote = Some(next),
            _ if quote == Some(next) => quote = None,
            _ if quote == Some('\'') => word.push(next),
            '\\' => word.extend(rest.next()),
            '$' => expand(&mut rest, home, &mut word, nested),
            '`' => {
                nested.push(rest.by_ref().take_while(|c| *c != '`').collect());
                word.push(TREE);
            }
            _ if quote.is_some() => word.push(next),
            ';' | '&' | '|' | '(' | ')' | '{' | '}' | '\n' => end_word(&mut word, true),
            '<' | '>' => end_word(&mut word, false),
            _ if next.is_whitespace() => end_word(&mut word, false),
            _ => word.push(next),
        }
    }
    end_word(&mut word, true);
    commands
}

/// Reads what follows a dollar sign, and adds what it becomes to `word`.
fn expand(
    rest: &mut Peekable<Chars<'_>>,
    home: Option<&Path>,
    word: &mut String,
    nested: &mut Vec<String>,
) {
    if rest.next_if_eq(&'(').is_some() {
        let mut depth = 1;
        let is_inside = |c: &char| {
            depth += i32::from(*c == '(') - i32::from(*c == ')');
            depth > 0
        };
        nested.push(rest.by_ref().take_while(is_inside).collect());
        return word.push(TREE);
    }
    let mut name = String::new();
    if rest.next_if_eq(&'{').is_some() {
        name.extend(rest.by_ref().take_while(|c| *c != '}'));
    } else {
        while let Some(next) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(next);
        }
    }
    match home.and_then(Path::to_str).filter(|_| name == "HOME") {
        Some(home) => word.push_str(home),
        None if TREE_VARIABLES.contains(&name.as_str()) => word.push(TREE),
        None => word.push(UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_value_are_those_of_a_shell_and_of_nested_command_lines() {
        for (value, word, kind) in [
            ("!s/x", "s/x", WordKind::Program),
            ("!sh -c \"./s/x;true\"", "./s/x", WordKind::Program),
            ("!sh -c \"s/x;true\"", "s/x", WordKind::Program),
            (
                "!\"$(git rev-parse --show-toplevel)\"/s/x",
                "s/x",
                WordKind::Program,
            ),
            (
                "!\"$(git rev-parse --show-toplevel)\"/run",
                "run",
                WordKind::Program,
            ),
            ("!echo $(s/x)", "s/x", WordKind::Program),
            ("!${PWD}/s/x", "s/x", WordKind::Program),
            ("!cd \"$GIT_PREFIX\" && A=b s/x", "s/x", WordKind::Program),
            ("!\"$HOME/bin/x\" y", "/home/a/bin/x", WordKind::Program),
            ("!$TOOLS/s/x y", "s/x", WordKind::Argument),
            ("!`pwd`/s/x", "s/x", WordKind::Program),
            ("./a\\ b/x --y", "./a b/x", WordKind::Program),
            ("./'a b'/x", "./a b/x", WordKind::Program),
            ("!sh -c '\"./a b\"/x'", "./a b/x", WordKind::Program),
            ("/a b/x", "/a b/x", WordKind::Argument),
            ("ext::./s/x y", "./s/x", WordKind::Program),
            ("ssh -F./s/x", "./s/x", WordKind::Program),
            ("python3 -u clean", "clean", WordKind::Program),
            ("/usr/bin/env sh clean", "clean", WordKind::Program),
            (". clean", "clean", WordKind::Program),
            ("uv run clean.py", "clean.py", WordKind::Program),
            ("git-lfs clean", "clean", WordKind::Word),
            ("sed -e s/a/b/", "s/a/b/", WordKind::Argument),
        ] {
            let words = command_words(value, Some(Path::new("/home/a")));
            assert!(
                words.contains(&(word.to_owned(), kind)),
                "{value}: {words:?}"
            );
        }
    }

    #[test]
    fn common_values_name_no_relative_program() {
        for value in [
            "git-lfs clean -- %f",
            "gcloud.sh",
            "/usr/bin/python3 -m nbstripout",
            "perl -pe 's/a/b/'",
            "!gh auth git-credential",
            "!f() { git log --format=%h/%s \"$@\" | sed 's/a/b/' && echo 'a/b c'; }; f",
            "!\"$HOME/bin/x\" --y",
            "!git fetch origin && git rebase origin/main",
            "store --file ~/.git-credentials",
            "code --wait --diff \"$LOCAL\" \"$REMOTE\"",
            "delta | less -R",
            "/usr/bin/gpg",
            "!bash -c 'git branch --merged | grep -v \"origin/main\" | xargs git branch -d' -",
            "!git diff --name-only $(git merge-base origin/main HEAD)",
            "ssh -i ~/.ssh/id_ed25519 -o IdentitiesOnly=yes",
        ] {
            let words = command_words(value, Some(Path::new("/home/a")));
            let is_relative = |(word, kind): &(String, WordKind)| {
                *kind == WordKind::Program && !word.starts_with(['/', '~'])
            };
            assert!(!words.iter().any(is_relative), "{value}: {words:?}");
        }
    }
}
