//! English word forms. A few suffix rules replace a dictionary: they must be fast, and map all forms of a word to one
//! stem, which need not be a word.

use super::tokens::MAX_WORD_BYTES;

/// Minimum length of a word with a removable suffix.
const MIN_STEMMED_BYTES: usize = 4;

/// Frequent words that say nothing about the topic, and the words of questions. A search ignores them if its text has
/// other words.
const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "again", "all", "also", "am", "an", "and", "any", "are", "as", "at",
    "be", "because", "been", "before", "being", "but", "by", "can", "could", "d", "did", "do",
    "does", "doing", "don", "for", "from", "had", "has", "have", "having", "he", "her", "hers",
    "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "ll", "m", "may",
    "me", "might", "must", "my", "of", "on", "or", "our", "re", "s", "shall", "she", "should",
    "so", "some", "t", "than", "that", "the", "their", "them", "then", "there", "these", "they",
    "this", "those", "to", "us", "ve", "was", "we", "were", "what", "when", "where", "which",
    "while", "who", "whom", "whose", "why", "will", "with", "would", "you", "your", "什么", "什麼",
    "时候", "怎么", "么时", "为什", "哪里", "哪个", "哪些", "多少", "是谁", "么样", "几个", "何时",
    "吗", "呢", "的", "了", "何で", "です", "ます", "した",
];

/// Forms of irregular verbs and nouns. Each line has the forms of one word.
const IRREGULAR_FORMS: &[&str] = &[
    "go goes went gone",
    "buy bought",
    "bring brought",
    "think thought",
    "teach taught",
    "catch caught",
    "see saw seen",
    "say said",
    "tell told",
    "make made",
    "take took taken",
    "give gave given",
    "get got gotten",
    "find found",
    "leave left",
    "meet met",
    "feel felt",
    "keep kept",
    "sleep slept",
    "lose lost",
    "win won",
    "write wrote written",
    "read reading",
    "speak spoke spoken",
    "drive drove driven",
    "ride rode ridden",
    "fly flew flown",
    "begin began begun",
    "swim swam swum",
    "run ran",
    "eat ate eaten",
    "drink drank drunk",
    "grow grew grown",
    "know knew known",
    "build built",
    "send sent",
    "spend spent",
    "pay paid",
    "sell sold",
    "hold held",
    "stand stood",
    "understand understood",
    "choose chose chosen",
    "break broke broken",
    "wear wore worn",
    "draw drew drawn",
    "sing sang sung",
    "fall fell fallen",
    "become became",
    "come came",
    "hear heard",
    "learn learnt",
    "lead led",
    "fight fought",
    "hide hid hidden",
    "throw threw thrown",
    "child children",
    "person people",
    "man men",
    "woman women",
    "mouse mice",
    "foot feet",
    "tooth teeth",
    "life lives",
    "wife wives",
];

/// Returns whether a folded word is a stop word.
pub(super) fn is_stop_word(word: &[u8]) -> bool {
    STOP_WORDS.iter().any(|stop| stop.as_bytes() == word)
}

/// Returns the other forms of an irregular word.
pub(super) fn irregular_forms(word: &[u8]) -> impl Iterator<Item = &'static str> {
    let has_word = |line: &&&str| line.split(' ').any(|form| form.as_bytes() == word);
    let line = IRREGULAR_FORMS
        .iter()
        .find(has_word)
        .copied()
        .unwrap_or_default();
    line.split(' ')
        .filter(move |form| !form.is_empty() && form.as_bytes() != word)
}

/// Returns the stem of a folded word. The stem of a word that is not English is the word itself.
#[inline]
pub(super) fn stem<'a>(word: &'a [u8], buffer: &'a mut [u8; MAX_WORD_BYTES]) -> &'a [u8] {
    if word.len() < MIN_STEMMED_BYTES - 1 || !word.last().is_some_and(u8::is_ascii_lowercase) {
        return word;
    }
    let mut stem = word;
    if let [rest @ .., before, b's'] = stem
        && rest.len() >= 2
        && !matches!(before, b's' | b'u' | b'i')
    {
        stem = stem.get(..stem.len() - 1).unwrap_or(stem);
    }
    stem = strip_suffix(stem, b"ing")
        .or_else(|| strip_suffix(stem, b"ed"))
        .or_else(|| stem.strip_suffix(b"ly").filter(|rest| rest.len() > 3))
        .unwrap_or(stem);
    match stem {
        [rest @ .., b'e'] if stem.len() >= MIN_STEMMED_BYTES => rest,
        // Like the stem of "studies".
        [rest @ .., b'y'] => {
            let stem = buffer.get_mut(..stem.len()).unwrap_or_default();
            if let Some((last, head)) = stem.split_last_mut() {
                head.copy_from_slice(rest);
                *last = b'i';
            }
            stem
        }
        _ => stem,
    }
}

/// Removes a verb suffix if at least three letters with a vowel remain. Removes one of two equal last letters too, as
/// in "stopped".
fn strip_suffix<'a>(word: &'a [u8], suffix: &[u8]) -> Option<&'a [u8]> {
    let rest = word.strip_suffix(suffix)?;
    let has_vowel = rest.iter().any(|letter| b"aeiouy".contains(letter));
    match rest {
        _ if rest.len() < 3 || !has_vowel => None,
        [head @ .., last, other] if last == other && !b"lsz".contains(last) => {
            rest.get(..=head.len())
        }
        _ => Some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stem_of(word: &str) -> String {
        String::from_utf8(stem(word.as_bytes(), &mut [0; MAX_WORD_BYTES]).to_vec()).unwrap()
    }

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            "hike hikes hiked hiking",
            "paint paints painted painting paintings",
            "study studies studied studying",
            "stop stops stopped stopping",
            "movie movies",
            "party parties",
            "try tries tried trying",
            "class classes",
            "call calls called calling",
            "deploy deploys deployed deploying",
            "quick quickly",
            "box boxes",
            "cookie cookies",
        ] {
            let mut stems = forms.split(' ').map(stem_of);
            let first = stems.next().unwrap();
            assert!(stems.all(|stem| stem == first), "{forms}: {first}");
        }
        for (left, right) in [
            ("string", "str"),
            ("part", "party"),
            ("move", "movie"),
            ("bus", "bu"),
        ] {
            assert_ne!(stem_of(left), stem_of(right));
        }
    }
}
