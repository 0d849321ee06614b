//! Splits a command line into words without a shell.
//!
//! Whitespace separates words, `'…'` and `"…"` quote, and `\` escapes the next character (inside `"…"` only `"` and
//! `\`). Nothing else is special: no variables, pipes, globs or `~`. Users who need a shell write `sh -c '…'`.

/// Returns the words of a line.
///
/// # Errors
///
/// Fails if a quote is not closed or the line ends with `\`. The texts are those of the Python version.
pub fn split_words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                let escaped = characters.next().ok_or("No escaped character")?;
                let is_kept = quote.is_some() && !matches!(escaped, '"' | '\\');
                let word = word.get_or_insert_default();
                word.extend(is_kept.then_some('\\').into_iter().chain([escaped]));
            }
            (None, ' ' | '\t' | '\r' | '\n') => words.extend(word.take()),
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    quote.map_or(Ok(words), |_| Err("No closing quotation"))
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
            assert!(split_words(open).is_err(), "{open}");
        }
    }
}
