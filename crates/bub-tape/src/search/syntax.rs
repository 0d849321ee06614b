//! The syntax of search texts: words, `"phrases"`, `-word`, `kind:`, `from:`, `before:` and `after:`.

use std::collections::HashSet;

use jiff::Timestamp;

use super::{
    stem::{irregular_forms, is_measure, is_stop_word, similar_words},
    tokens::{Token, for_each_token, hash_term, normalize},
};
use crate::{EntryKind, Result, query::dates::parse_bound};

/// Maximum number of words of a search text. The rest is ignored.
const MAX_WORDS: usize = 24;

/// A word to search for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchWord {
    /// The folded word.
    pub(crate) text: Vec<u8>,
    /// Hash of the word.
    pub(crate) hash: u32,
    /// Hash of the stem, as in the index.
    pub(crate) stem: u32,
    /// Hashes of the stems of other forms.
    pub(crate) forms: Vec<u32>,
    /// Hashes of the stems of words with a similar meaning.
    pub(crate) similar: Vec<u32>,
}

impl SearchWord {
    fn new(token: Token<'_>) -> Self {
        let stem = token.stem_hash();
        let form_stem = |form: &str| {
            Token {
                text: form.as_bytes(),
                start: 0,
            }
            .stem_hash()
        };
        let mut known = vec![stem];
        let mut new_stems = |words: &mut dyn Iterator<Item = &'static str>| {
            let mut stems: Vec<u32> = words.map(form_stem).collect();
            stems.retain(|stem| {
                let is_new = !known.contains(stem);
                known.extend(Some(*stem).filter(|_| is_new));
                is_new
            });
            stems
        };
        Self {
            text: token.text.to_vec(),
            hash: hash_term(token.text),
            stem,
            forms: new_stems(&mut irregular_forms(token.text)),
            similar: new_stems(&mut similar_words(token.text)),
        }
    }
}

/// A parsed search text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ParsedText {
    /// The distinct words that count. Stop words count only if there are no others.
    pub(crate) words: Vec<SearchWord>,
    /// All words outside of quotes in their order, with stop words.
    pub(crate) sequence: Vec<SearchWord>,
    /// Phrases that must occur.
    pub(crate) phrases: Vec<Vec<SearchWord>>,
    /// Words and phrases that must not occur.
    pub(crate) excluded: Vec<Vec<SearchWord>>,
    /// Folded words of the authors, one list for each `from:`.
    pub(crate) authors: Vec<Vec<Vec<u8>>>,
    /// The kinds, or `None` without `kind:`.
    pub(crate) kinds: Option<Vec<EntryKind>>,
    /// The earliest time, included.
    pub(crate) after: Option<Timestamp>,
    /// The latest time, excluded.
    pub(crate) before: Option<Timestamp>,
}

impl ParsedText {
    /// Parses a search text. Fails only if a date is invalid.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let text = normalize(text);
        let mut parsed = Self::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            rest = parsed.parse_part(rest)?.trim_start();
        }
        parsed.sequence.truncate(MAX_WORDS);
        let phrase_words = parsed.phrases.iter().flatten();
        let all = || parsed.sequence.iter().chain(phrase_words.clone());
        let (mut words, mut previous): (Vec<&SearchWord>, &[u8]) = (Vec::new(), b"");
        for word in all() {
            let is_content = !is_stop_word(word.hash) && !is_measure(previous, &word.text);
            words.extend(Some(word).filter(|_| is_content));
            previous = &word.text;
        }
        if words.is_empty() {
            words = all().collect();
        }
        let mut known = HashSet::new();
        words.retain(|word| known.insert(word.stem));
        parsed.words = words.into_iter().take(MAX_WORDS).cloned().collect();
        Ok(parsed)
    }

    /// Returns whether the text contains nothing to search for.
    pub(crate) fn is_empty(&self) -> bool {
        let has_filter = self.kinds.is_some() || self.after.is_some() || self.before.is_some();
        self.words.is_empty() && self.authors.is_empty() && !has_filter
    }

    /// Parses the first part of a text and returns the rest.
    fn parse_part<'a>(&mut self, text: &'a str) -> Result<&'a str> {
        if let Some(rest) = text.strip_prefix('-')
            && rest.starts_with(|next: char| next == '"' || next.is_alphanumeric())
        {
            let (value, rest) = split_value(rest);
            let words = split_words(value);
            self.excluded
                .extend(Some(words).filter(|words| !words.is_empty()));
            return Ok(rest);
        }
        if let Some((key, value)) = text.split_once(':')
            && !value.starts_with(char::is_whitespace)
        {
            let (value, rest) = split_value(value);
            match key {
                "kind" => {
                    let kinds = value.split(',').map(EntryKind::from);
                    self.kinds.get_or_insert_default().extend(kinds);
                    return Ok(rest);
                }
                "from" => {
                    let words = split_words(value).into_iter().map(|word| word.text);
                    let words: Vec<_> = words.collect();
                    self.authors
                        .extend(Some(words).filter(|words| !words.is_empty()));
                    return Ok(rest);
                }
                "after" => {
                    self.after = Some(parse_bound(value, jiff::civil::Time::midnight())?);
                    return Ok(rest);
                }
                "before" => {
                    self.before = Some(parse_bound(value, jiff::civil::Time::midnight())?);
                    return Ok(rest);
                }
                _ => {}
            }
        }
        let (value, rest) = split_value(text);
        let words = split_words(value);
        // A quoted part is a phrase, also if it is one word.
        if text.starts_with('"') && value.len() < text.len() - rest.len() {
            self.phrases
                .extend(Some(words).filter(|words| !words.is_empty()));
        } else {
            self.sequence.extend(words);
        }
        Ok(rest)
    }
}

/// Splits a text after its first value: a quoted text, or the text before the next space.
fn split_value(text: &str) -> (&str, &str) {
    let quoted = text.strip_prefix('"').and_then(|rest| rest.split_once('"'));
    quoted.unwrap_or_else(|| text.split_at(text.find(char::is_whitespace).unwrap_or(text.len())))
}

fn split_words(text: &str) -> Vec<SearchWord> {
    let mut words = Vec::new();
    for_each_token(text, &mut |token| {
        if words.len() < MAX_WORDS {
            words.push(SearchWord::new(token));
        }
    });
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[SearchWord]) -> String {
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(&word.text))
            .collect();
        words.join(" ")
    }

    #[test]
    fn parts_of_a_text_are_recognized() {
        let text = r#"When did the Café open "grand opening" -closed -"not now" from:Ada kind:message,event after:2026-01-02 x:y"#;
        let parsed = ParsedText::parse(text).unwrap();
        assert_eq!(texts(&parsed.words), "cafe open x y grand");
        assert_eq!(texts(&parsed.sequence), "when did the cafe open x y");
        assert_eq!(texts(&parsed.phrases[0]), "grand opening");
        assert_eq!(
            parsed
                .excluded
                .iter()
                .map(|words| texts(words))
                .collect::<Vec<_>>(),
            ["closed", "not now"]
        );
        assert_eq!(parsed.authors, [[b"ada".to_vec()]]);
        assert_eq!(
            parsed.kinds,
            Some(vec![EntryKind::Message, EntryKind::Event])
        );
        assert_eq!(parsed.after.unwrap().to_string(), "2026-01-02T00:00:00Z");
        assert!(ParsedText::parse("before:soon").is_err());
        assert!(ParsedText::parse("-x").unwrap().is_empty());
        assert_eq!(
            texts(&ParsedText::parse("who is it").unwrap().words),
            "who is it"
        );
        assert_eq!(
            texts(&ParsedText::parse("--help a-b \"open").unwrap().words),
            "help b open"
        );
        assert_eq!(
            texts(&ParsedText::parse("ＡＢＣ 斑马鱼").unwrap().words),
            "abc 斑马 马鱼"
        );
    }
}
