//! How alike two words are.
//!
//! The measure is the one of the original's matcher for a single word: twice the longest common subsequence, over the
//! length of both; 80 of 100 is a match. In a word that is much longer the best part of it counts, and must reach 89.
//! Unlike there, a word that is much shorter never matches: it would find "on" for "configuration".

/// Longer words are compared by their beginning; the comparison keeps one bit a character.
pub(super) const MAX_CHARS: usize = 64;
/// Shorter words are no typing errors of anything.
pub(super) const MIN_CHARS: usize = 3;

/// A word to compare others with.
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

    /// How many characters it has.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether a word is so much like it that it may have been meant. `letter` says which caseless letter a unit of the word
    /// is: units are bytes where the word is ASCII, which is most of the time and saves a conversion.
    pub(super) fn resembles<T: Copy>(&self, word: &[T], letter: impl Fn(T) -> char) -> bool {
        let (own, other) = (self.length, word.len());
        if other < MIN_CHARS || other * 3 < own * 2 {
            return false;
        }
        if other * 2 < own * 3 {
            return self.common(word, &letter) * 5 >= (own + other) * 2;
        }
        // Eight ninths of a short word are all of it, and telling whether two words are equal is quick.
        if own < 9 {
            let same = |part: &[T]| {
                part.iter()
                    .zip(&self.word)
                    .all(|(unit, own)| letter(*unit) == *own)
            };
            return word.windows(own).any(same);
        }
        word.windows(own)
            .any(|part| self.common(part, &letter) * 9 >= own * 8)
    }

    /// The length of the longest common subsequence, all rows of its table at once in the bits of one number.
    fn common<T: Copy>(&self, word: &[T], letter: impl Fn(T) -> char) -> usize {
        let rows = word.iter().fold(u64::MAX, |rows, unit| {
            let matching = rows & self.mask(letter(*unit));
            rows.wrapping_add(matching) | rows.wrapping_sub(matching)
        });
        let used = if self.length >= MAX_CHARS {
            u64::MAX
        } else {
            (1 << self.length) - 1
        };
        (!rows & used).count_ones() as usize
    }

    fn mask(&self, character: char) -> u64 {
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
        for (asked, met, expected) in [
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
                Pattern::new(&chars(asked)).resembles(&chars(met), |letter| letter),
                expected,
                "{asked} {met}"
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
            proptest::prop_assert_eq!(Pattern::new(&left).common(&right, |letter| letter), textbook(&left, &right));
        });
    }
}
