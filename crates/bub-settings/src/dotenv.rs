//! Reads `.env` files in the dialect of python-dotenv, which the Python version uses.
//!
//! The crate `dotenvy` does not fit: it expands `${NAME}` from the real process environment, has no
//! line numbers, rejects `NAME=two words`, and quotes the invalid line, often with an API key, in
//! its errors.
//!
//! The syntax is `NAME=value`, optionally after `export`. `#` starts a comment at the start of a
//! line or after a space. `"…"` has escapes and may span lines; `'…'` has only `\\` and `\'` and may
//! span lines. `${NAME}` and `${NAME:-fallback}` are expanded, also in quotes. If a name occurs
//! twice, the last value is used. Any other line is reported and skipped, as in python-dotenv.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum length of a value after expansion. Keys, URLs and lists are shorter.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// One assignment.
#[derive(Clone)]
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Line of the name, counted from 1.
    pub(crate) line: usize,
}

/// All assignments of a file, and the invalid lines.
#[derive(Default)]
pub(crate) struct DotEnv {
    pub(crate) bindings: Vec<Binding>,
    pub(crate) bad_lines: Vec<(usize, &'static str)>,
}

/// Parses a file. `lookup` returns the value of a variable in the environment, which takes
/// precedence over the lines of the file.
pub(crate) fn parse(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> DotEnv {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut cursor = Cursor {
        chars: text.chars().peekable(),
        line: 1,
    };
    let mut file = DotEnv::default();
    while cursor.skip_to_statement() {
        let line = cursor.line;
        let (name, value) = match cursor.parse_statement() {
            Ok((name, Some(value))) => (name, value),
            // A bare `NAME` assigns nothing.
            Ok((_, None)) => continue,
            Err(problem) => {
                file.bad_lines.push((line, problem));
                cursor.skip_line();
                continue;
            }
        };
        let value = expand_variables(&value, &|name| {
            lookup(name).or_else(|| {
                let mut bindings = file.bindings.iter().rev();
                let binding = bindings.find(|binding| binding.name == name)?;
                Some(binding.value.clone())
            })
        });
        // References can double the length with every line, which is never intended.
        if value.len() > MAX_VALUE_BYTES {
            let problem = "the value is longer than 64 KiB";
            file.bad_lines.push((line, problem));
            continue;
        }
        file.bindings.push(Binding { name, value, line });
    }
    file
}

const NOT_AN_ASSIGNMENT: &str = "not a `NAME=value` line";

struct Cursor<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Cursor<'_> {
    fn next_char(&mut self) -> Option<char> {
        let next = self.chars.next();
        if next == Some('\n') {
            self.line += 1;
        }
        next
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(next) = self.chars.next_if(|c| *c != '\n' && keep(*c)) {
            text.push(next);
        }
        text
    }

    fn skip_spaces(&mut self) {
        self.take_while(char::is_whitespace);
    }

    fn skip_line(&mut self) {
        self.take_while(|_| true);
    }

    /// Skips blanks and comments; returns false at the end.
    fn skip_to_statement(&mut self) -> bool {
        loop {
            match self.chars.peek() {
                None => return false,
                Some('#') => self.skip_line(),
                Some(c) if c.is_whitespace() => {
                    self.next_char();
                }
                Some(_) => return true,
            }
        }
    }

    /// Parses a name and its value, if it has one. The error is what is wrong with the line.
    fn parse_statement(&mut self) -> Result<(String, Option<String>), &'static str> {
        let mut name = self.parse_name().ok_or(NOT_AN_ASSIGNMENT)?;
        self.skip_spaces();
        if name == "export" && !matches!(self.chars.peek(), None | Some('=' | '\n' | '#')) {
            name = self.parse_name().ok_or(NOT_AN_ASSIGNMENT)?;
            self.skip_spaces();
        }
        let mut value = None;
        if self.chars.next_if_eq(&'=').is_some() {
            self.skip_spaces();
            value = Some(match self.chars.peek() {
                Some(quote @ ('\'' | '"')) => {
                    let quote = *quote;
                    self.parse_quoted(quote)?
                }
                _ => self.parse_unquoted(),
            });
        }
        self.skip_spaces();
        match self.chars.peek() {
            None | Some('\n') => {}
            Some('#') => self.skip_line(),
            Some(_) => return Err(NOT_AN_ASSIGNMENT),
        }
        Ok((name, value))
    }

    fn parse_name(&mut self) -> Option<String> {
        if self.chars.next_if_eq(&'\'').is_some() {
            let name = self.take_while(|c| c != '\'');
            self.chars.next_if_eq(&'\'')?;
            return Some(name);
        }
        let name = self.take_while(|c| c != '=' && c != '#' && !c.is_whitespace());
        (!name.is_empty()).then_some(name)
    }

    fn parse_unquoted(&mut self) -> String {
        let line = self.take_while(|_| true);
        let before_marks = line.match_indices('#').filter_map(|(at, _)| line.get(..at));
        let mut comments =
            before_marks.filter(|before| !before.ends_with(|c: char| !c.is_whitespace()));
        comments.next().unwrap_or(&line).trim_end().to_owned()
    }

    /// Parses quoted text. An unclosed quote invalidates only its own line.
    fn parse_quoted(&mut self, quote: char) -> Result<String, &'static str> {
        let before = (self.chars.clone(), self.line);
        self.parse_until_quote(quote).ok_or_else(|| {
            (self.chars, self.line) = before;
            "the quote is not closed"
        })
    }

    fn parse_until_quote(&mut self, quote: char) -> Option<String> {
        self.next_char();
        let mut value = String::new();
        loop {
            match self.next_char()? {
                '\\' => match (self.next_char()?, quote) {
                    (c @ ('\\' | '\''), '\'') | (c @ ('\\' | '\'' | '"'), '"') => value.push(c),
                    ('n', '"') => value.push('\n'),
                    ('t', '"') => value.push('\t'),
                    ('r', '"') => value.push('\r'),
                    (c, _) => value.extend(['\\', c]),
                },
                c if c == quote => return Some(value),
                c => value.push(c),
            }
        }
    }
}

/// Replaces `${NAME}` and `${NAME:-fallback}`; an unknown name without a fallback becomes empty
/// text.
fn expand_variables(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest
        .split_once("${")
        .filter(|_| expanded.len() <= MAX_VALUE_BYTES)
    {
        let Some((inside, tail)) = after.split_once('}') else {
            break;
        };
        expanded.push_str(before);
        let (name, fallback) = inside.split_once(':').unwrap_or((inside, "-"));
        // `${NAME:…}` without the minus sign is text.
        let Some(fallback) = fallback.strip_prefix('-') else {
            expanded.push_str("${");
            rest = after;
            continue;
        };
        expanded.push_str(&lookup(name).unwrap_or_else(|| fallback.to_owned()));
        rest = tail;
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    type Bad = Vec<(usize, &'static str)>;

    fn load(text: &str) -> (Vec<(String, String, usize)>, Bad) {
        let file = parse(text, &|name| {
            (name == "HOME").then(|| "/home/ada".to_owned())
        });
        let bindings = file
            .bindings
            .into_iter()
            .map(|b| (b.name, b.value, b.line))
            .collect();
        (bindings, file.bad_lines)
    }

    // C.7
    #[test]
    fn every_form_of_an_assignment_is_read() {
        let rows = [
            ("A=b", "b"),
            ("  A = b  ", "b"),
            ("export A=b", "b"),
            ("A=", ""),
            ("A=two words", "two words"),
            ("A=b # note", "b"),
            ("A=b#c", "b#c"),
            ("A=# note", ""),
            ("A='b # c'", "b # c"),
            ("A='it\\'s'", "it's"),
            ("A='\\n'", "\\n"),
            ("A=\"b\\n\\\"c\\\"\"", "b\n\"c\""),
            ("A=\"b\nc\" # note", "b\nc"),
            ("A=\"\\d\"", "\\d"),
            ("A=${HOME}/x", "/home/ada/x"),
            ("A='${HOME}'", "/home/ada"),
            ("A=\"${HOME}\"", "/home/ada"),
            ("A=${NOPE:+x}${HOME}", "${NOPE:+x}/home/ada"),
            ("A=${NOPE}", ""),
            ("A=${NOPE:-else}", "else"),
            ("A=${open", "${open"),
            ("A=$HOME", "$HOME"),
            ("'A'=b", "b"),
            ("A=b=c==", "b=c=="),
            ("A=ключ", "ключ"),
            ("\u{feff}A=b", "b"),
            ("A=b\r\n", "b"),
            ("export=b", "b"),
        ];
        for (text, value) in rows {
            let name = if text.starts_with("export=") {
                "export"
            } else {
                "A"
            };
            assert_eq!(
                load(text),
                (vec![(name.into(), value.into(), 1)], vec![]),
                "{text:?}"
            );
        }
    }

    #[test]
    fn lines_are_counted_and_bad_ones_skipped() {
        let text = "# first\n\nA=\"x\ny\"\nnonsense here\nB=${A}!\nC\nD='open\nE=\"open\nF=f\n";
        let (bindings, bad) = load(text);
        let read = [("A", "x\ny", 3), ("B", "x\ny!", 6), ("F", "f", 10)];
        assert_eq!(
            bindings,
            read.map(|(name, value, line)| (name.into(), value.into(), line))
        );
        let open = "the quote is not closed";
        assert_eq!(bad, [(5, "not a `NAME=value` line"), (8, open), (9, open)]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_or_hang(text in "[A-C='\"\\\\#$ {}:\n-]{0,60}") {
            load(&text);
        }
    }
}
