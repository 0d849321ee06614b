//! Compares words for similarity.
//!
//! The similarity of two words is defined as in the Python version: twice the length of the longest common subsequence,
//! divided by the sum of both lengths. A match needs 80 percent. If the other word is much longer, its best matching
//! part counts and needs 89 percent. A much shorter word never matches, while the Python version matches "on" with
//! "configuration".

/// Maximum number of characters that are compared, because the comparison uses one bit of a `u64` per character. The
/// rest of a longer word is ignored.
pub(super) const MAX_CHARS: usize = 64;
/// Minimum length of a word with typing errors. Shorter words match only exactly.
pub(super) const MIN_CHARS: usize = 3;

/// Returns whether `other` is similar enough to be `word` with typing errors. `word` has at most [`MAX_CHARS`]
/// characters.
pub(super) fn is_similar(word: &[char], other: &[char]) -> bool {
    let (length, other_length) = (word.len(), other.len());
    if other_length < MIN_CHARS || other_length * 3 < length * 2 {
        return false;
    }
    if other_length * 2 < length * 3 {
        return common_subsequence_length(word, other) * 5 >= (length + other_length) * 2;
    }
    other.windows(length).any(|part| {
        // Eight ninths of fewer than nine letters, rounded up, are all letters. So the part must be equal to the word,
        // which is faster to check.
        part == word || length >= 9 && common_subsequence_length(word, part) * 9 >= length * 8
    })
}

/// Returns the length of the longest common subsequence. Computes each column of the dynamic programming table at once,
/// with one bit per row.
fn common_subsequence_length(word: &[char], other: &[char]) -> usize {
    let positions = |character: &char| {
        let bits = word.iter().rev();
        bits.fold(0_u64, |mask, own| mask << 1 | u64::from(own == character))
    };
    let rows = other.iter().fold(u64::MAX, |rows, character| {
        let matching = rows & positions(character);
        rows.wrapping_add(matching) | rows.wrapping_sub(matching)
    });
    word.iter()
        .enumerate()
        .filter(|(row, _)| rows >> row & 1 == 0)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chars(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    #[test]
    fn words_match_within_a_typing_error() {
        for (pattern, word, expected) in [
            ("zebrafish", "zebrafish", true),
            ("zebrafish", "zebrafsh", true),
            ("zebrafish", "zebarfish", true),
            ("zebrafish", "xzebrafishes", true),
            ("zebrafish", "catfish", false),
            ("xylophone", "xylofone", true),
            ("xylophon", "telexylophonist", true),
            ("configuration", "on", false),
            ("configuration", "config", false),
            ("teh", "the", false),
            ("cat", "cart", true),
            ("cat", "at", false),
            ("привет", "превет", true),
            ("你好世界", "你好新世界", true),
        ] {
            assert_eq!(
                is_similar(&chars(pattern), &chars(word)),
                expected,
                "{pattern} {word}"
            );
        }
    }

    #[test]
    fn the_common_subsequence_is_the_textbook_one() {
        let textbook = |left: &[char], right: &[char]| {
            let mut row = vec![0; right.len() + 1];
            for l in left {
                let mut diagonal = 0;
                for (index, r) in right.iter().enumerate() {
                    let above = row[index + 1];
                    row[index + 1] = if l == r {
                        diagonal + 1
                    } else {
                        above.max(row[index])
                    };
                    diagonal = above;
                }
            }
            row[right.len()]
        };
        proptest::proptest!(|(left in "[a-dä好]{0,70}", right in "[a-dä好]{0,80}")| {
            let left: Vec<char> = left.chars().take(MAX_CHARS).collect();
            let right = chars(&right);
            proptest::prop_assert_eq!(common_subsequence_length(&left, &right), textbook(&left, &right));
        });
    }
}
