//! Letters without their case, one character for one character.
//!
//! Keeping the count of characters means that a place in folded text is the same place in the original. That leaves
//! out the few letters that fold to two (`ß` stays itself, it does not become `ss`).

use std::{collections::HashMap, sync::LazyLock};

/// Where letters with case end; planes behind hold none.
const MAX_CASED_CHAR: char = '\u{1ffff}';

/// The caseless form of a character. ASCII letters are the form of ASCII letters only, so that a search for ASCII text
/// can look at bytes.
pub(crate) fn fold(character: char) -> char {
    if character.is_ascii() {
        return character.to_ascii_lowercase();
    }
    // Upper case first: it joins what lower case keeps apart, such as the two forms of sigma.
    let folded = lower(upper(character));
    match (folded.is_ascii(), lower(character)) {
        (false, _) => folded,
        (true, own) if own.is_ascii() => character,
        (true, own) => own,
    }
}

/// The caseless form of a text.
pub(crate) fn fold_text(text: &str) -> String {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        text.chars().map(fold).collect()
    }
}

/// Every character whose caseless form is the given one, itself included.
pub(crate) fn spellings(folded: char) -> Vec<char> {
    if folded.is_ascii() {
        let mut both = vec![folded, folded.to_ascii_uppercase()];
        both.dedup();
        return both;
    }
    let mut spellings = vec![folded];
    if has_case(folded) {
        spellings.extend(CASE_VARIANTS.get(&folded).into_iter().flatten());
    }
    spellings
}

/// The standard library has no table from a letter to its other forms. Making one takes two milliseconds and is left until
/// somebody looks for a letter that has such forms and is not ASCII.
static CASE_VARIANTS: LazyLock<HashMap<char, Vec<char>>> = LazyLock::new(|| {
    let mut spellings: HashMap<char, Vec<char>> = HashMap::new();
    for character in '\u{80}'..=MAX_CASED_CHAR {
        let folded = fold(character);
        if folded != character {
            spellings.entry(folded).or_default().push(character);
        }
    }
    spellings
});

fn has_case(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

fn upper(character: char) -> char {
    only(character.to_uppercase()).unwrap_or(character)
}

fn lower(character: char) -> char {
    only(character.to_lowercase()).unwrap_or(character)
}

fn only(mut characters: impl Iterator<Item = char>) -> Option<char> {
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_is_stable_and_spellings_find_the_way_back() {
        let mut forms: HashMap<char, Vec<char>> = HashMap::new();
        for character in '\0'..=char::MAX {
            let folded = fold(character);
            assert_eq!(fold(folded), folded, "{character:?}");
            if folded != character {
                assert!(
                    character <= MAX_CASED_CHAR && has_case(folded),
                    "{character:?} {folded:?}"
                );
                forms.entry(folded).or_default().push(character);
            }
        }
        for (folded, others) in &forms {
            let spellings = spellings(*folded);
            assert!(
                others
                    .iter()
                    .chain([folded])
                    .all(|other| spellings.contains(other)),
                "{folded:?}"
            );
        }
    }

    #[test]
    fn letters_of_every_script_meet_their_other_case() {
        for (left, right) in [
            ("ÉCOLE", "école"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("ПРИВЕТ", "привет"),
            ("Ⅷ", "ⅷ"),
            ("你好", "你好"),
        ] {
            assert_eq!(fold_text(left), fold_text(right));
        }
    }
}
