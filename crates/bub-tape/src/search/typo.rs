//! Compares words for similarity.
//!
//! The measure for a single word is that of the Python version: twice the length of the longest common subsequence,
//! divided by the sum of both lengths. A match needs 80 percent. If the other word is much longer, its best matching
//! part counts and needs 89 percent. Unlike in the Python version, a much shorter word never matches: "on" would match
//! "configuration".

/// Maximum number of characters that are compared, because the comparison uses one bit per character of a `u64`. The
/// rest of a longer word is ignored.
pub(super) const MAX_CHARS: usize = 64;
/// Minimum length of a word with typing errors. Shorter words match only exactly.
pub(super) const MIN_CHARS: usize = 3;

/// A word to compare other words with.
#[derive(Debug)]
pub(super) struct Pattern {
    length: usize,
    word: Vec<char>,
    ascii: Box<[u64; 128]>,
    others: Vec<(char, u64)>,
}

impl Pattern {
    pub(super) fn new(word: &[char]) -> Self {
        let word = word.get(..MAX_CHARS).unwrap_or(word);
        let (mut ascii, mut others) = (Box::new([0; 128]), Vec::<(char, u64)>::new());
        for (index, character) in word.iter().enumerate() {
            let bit = 1_u64 << index;
            if let Some(mask) = ascii.get_mut(*character as usize) {
                *mask |= bit;
            } else if let Some((_, mask)) = others.iter_mut().find(|(other, _)| other == character)
            {
                *mask |= bit;
            } else {
                others.push((*character, bit));
            }
        }
        Self {
            length: word.len(),
            word: word.to_vec(),
            ascii,
            others,
        }
    }

    /// Returns the number of characters.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns whether a word is similar enough to be this word with typing errors.
    ///
    /// `word` consists of bytes or characters, which `letter` converts to folded characters. Most words are ASCII, and
    /// comparing their bytes avoids a conversion.
    pub(super) fn is_similar_to<T: Copy>(&self, word: &[T], letter: impl Fn(T) -> char) -> bool {
        let (own_length, other_length) = (self.length, word.len());
        if other_length < MIN_CHARS || other_length * 3 < own_length * 2 {
            return false;
        }
        if other_length * 2 < own_length * 3 {
            return self.common_subsequence_length(word, &letter) * 5
                >= (own_length + other_length) * 2;
        }
        // Eight ninths of a short word, rounded up, are all its letters. Comparing for equality is faster.
        if own_length < 9 {
            let is_equal = |part: &[T]| {
                part.iter()
                    .zip(&self.word)
                    .all(|(unit, own)| letter(*unit) == *own)
            };
            return word.windows(own_length).any(is_equal);
        }
        word.windows(own_length)
            .any(|part| self.common_subsequence_length(part, &letter) * 9 >= own_length * 8)
    }

    /// Returns the length of the longest common subsequence. Computes a column of the table at once, one bit per row.
    fn common_subsequence_length<T: Copy>(&self, word: &[T], letter: impl Fn(T) -> char) -> usize {
        let rows = word.iter().fold(u64::MAX, |rows, unit| {
            let matching = rows & self.character_mask(letter(*unit));
            rows.wrapping_add(matching) | rows.wrapping_sub(matching)
        });
        let used = if self.length >= MAX_CHARS {
            u64::MAX
        } else {
            (1 << self.length) - 1
        };
        (!rows & used).count_ones() as usize
    }

    fn character_mask(&self, character: char) -> u64 {
        match self.ascii.get(character as usize) {
            Some(mask) => *mask,
            None => self
                .others
                .iter()
                .find(|(other, _)| *other == character)
                .map_or(0, |(_, mask)| *mask),
        }
    }
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
                Pattern::new(&chars(pattern)).is_similar_to(&chars(word), |letter| letter),
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
            proptest::prop_assert_eq!(Pattern::new(&left).common_subsequence_length(&right, |letter| letter), textbook(&left, &right));
        });
    }
}
