//! Case folding that maps each character to exactly one character.
//!
//! Folding does not change the number of characters, so a character index is valid in the folded and in the unfolded
//! text. Therefore the few letters that fold to two characters are not folded (`ß` does not become `ss`).

use std::{collections::HashMap, sync::LazyLock};

/// Last character that can have a case. No character after it has one.
const MAX_CASED_CHAR: char = '\u{1ffff}';

/// Returns the folded form of a character. Only ASCII letters fold to ASCII letters, so that a search for ASCII text
/// can compare bytes.
pub(crate) fn fold_char(character: char) -> char {
    if character.is_ascii() {
        return character.to_ascii_lowercase();
    }
    // Convert to upper case first: it merges characters with distinct lower case forms, such as the two forms of sigma.
    let folded = to_single_lower(to_single_upper(character));
    match (folded.is_ascii(), to_single_lower(character)) {
        (false, _) => folded,
        (true, own) if own.is_ascii() => character,
        (true, own) => own,
    }
}

/// Returns the folded form of a text.
pub(crate) fn fold_text(text: &str) -> String {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        text.chars().map(fold_char).collect()
    }
}

/// Returns all characters whose folded form is `folded`, including `folded` itself.
pub(crate) fn case_variants(folded: char) -> Vec<char> {
    let mut variants = vec![folded];
    if folded.is_ascii_lowercase() {
        variants.push(folded.to_ascii_uppercase());
    } else if has_case(folded) {
        variants.extend(CASE_VARIANTS.get(&folded).into_iter().flatten());
    }
    variants
}

/// All non-ASCII characters that fold to another character, by their folded form. The standard library has no such
/// table. Building it takes two milliseconds, so it is built at the first search for a non-ASCII letter with a case.
static CASE_VARIANTS: LazyLock<HashMap<char, Vec<char>>> = LazyLock::new(|| {
    let mut variants: HashMap<char, Vec<char>> = HashMap::new();
    for character in '\u{80}'..=MAX_CASED_CHAR {
        let folded = fold_char(character);
        if folded != character {
            variants.entry(folded).or_default().push(character);
        }
    }
    variants
});

fn has_case(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

fn to_single_upper(character: char) -> char {
    single_char(character.to_uppercase()).unwrap_or(character)
}

fn to_single_lower(character: char) -> char {
    single_char(character.to_lowercase()).unwrap_or(character)
}

fn single_char(mut characters: impl Iterator<Item = char>) -> Option<char> {
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_is_stable_and_spellings_find_the_way_back() {
        let mut forms: HashMap<char, Vec<char>> = HashMap::new();
        for character in '\0'..=char::MAX {
            let folded = fold_char(character);
            assert_eq!(fold_char(folded), folded, "{character:?}");
            if folded != character {
                assert!(
                    character <= MAX_CASED_CHAR && has_case(folded),
                    "{character:?} {folded:?}"
                );
                forms.entry(folded).or_default().push(character);
            }
        }
        for (folded, others) in &forms {
            let spellings = case_variants(*folded);
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
