//! Splits a command line into words without a shell.
//!
//! Whitespace separates words, `'…'` and `"…"` quote, and `\` escapes the next character (inside `"…"` only `"` and
//! `\`). Nothing else is special: no variables, pipes, globs or `~`. Users who need a shell write `sh -c '…'`.

/// Returns the words of a line, or `None` if a quote is not closed or the line ends with `\`.
pub(super) fn split_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().push(characters.next()?),
            (Some('"'), '\\') => {
                let escaped = characters.next_if(|next| matches!(next, '"' | '\\'));
                word.get_or_insert_default().push(escaped.unwrap_or('\\'));
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::split_words;

    #[test]
    fn words_are_what_a_shell_would_make_of_quotes_and_nothing_more() {
        for (line, words) in [
            ("pass show openai", vec!["pass", "show", "openai"]),
            ("  a\t b  ", vec!["a", "b"]),
            (
                r#"sh -c 'echo "$HOME"'"#,
                vec!["sh", "-c", r#"echo "$HOME""#],
            ),
            (
                r#"a "b c" d\ e '' "\"\n""#,
                vec!["a", "b c", "d e", "", r#""\n"#],
            ),
            ("a'b'\"c\"", vec!["abc"]),
            (
                "~/bin/key $X | cat *",
                vec!["~/bin/key", "$X", "|", "cat", "*"],
            ),
            ("", vec![]),
        ] {
            assert_eq!(split_words(line).unwrap(), words, "{line}");
        }
        for open in ["a 'b", "a \"b", "a\\", "\"a\\\""] {
            assert_eq!(split_words(open), None, "{open}");
        }
    }
}
