//! English word forms. A few suffix rules replace a dictionary: they must be fast, and map all forms of a word to one
//! stem, which need not be a word.

use std::{collections::HashSet, sync::LazyLock};

use super::tokens::{MAX_WORD_BYTES, hash_term};

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

/// Words that belong to the question after "how", such as "how long".
const MEASURES: &[&str] = &["far", "long", "many", "much", "often", "old", "soon"];

/// Words with the same meaning in general English and Chinese, so that each can replace the others. Words that are only
/// related, such as "pet" and "dog", do not belong here.
const SIMILAR_WORDS: &[&str] = &[
    "mother mom mum mama",
    "father dad papa",
    "grandmother grandma granny",
    "grandfather grandpa granddad",
    "child kid",
    "boss manager",
    "colleague coworker",
    "doctor physician",
    "apartment flat",
    "shop store",
    "job work",
    "bike bicycle",
    "vacation holiday",
    "picture photo image",
    "movie film",
    "present gift",
    "ill sick",
    "afraid scared",
    "start begin",
    "end finish",
    "big large",
    "small little tiny",
    "happy glad",
    "buy purchase",
    "fix repair",
    "delete remove",
    "problem issue",
    "phone telephone",
    "妈妈 母亲",
    "爸爸 父亲",
    "妻子 太太 老婆",
    "丈夫 老公",
    "照片 图片",
    "旅行 旅游",
    "礼物 礼品",
];

/// The hashes of the stop words.
static STOP_HASHES: LazyLock<HashSet<u32>> = LazyLock::new(|| {
    let hashes = STOP_WORDS.iter().map(|word| hash_term(word.as_bytes()));
    hashes.collect()
});

/// Returns whether the hash of a folded word is that of a stop word.
pub(super) fn is_stop_word(hash: u32) -> bool {
    STOP_HASHES.contains(&hash)
}

/// Returns whether a word after this one belongs to the question.
pub(super) fn is_measure(previous: &[u8], word: &[u8]) -> bool {
    previous == b"how" && MEASURES.iter().any(|measure| measure.as_bytes() == word)
}

/// Returns the other forms of an irregular word.
pub(super) fn irregular_forms(word: &[u8]) -> impl Iterator<Item = &'static str> {
    others_in(IRREGULAR_FORMS, word, |form, word| form.as_bytes() == word)
}

/// Returns words with a similar meaning, whatever the form of the word is.
pub(super) fn similar_words(word: &[u8]) -> impl Iterator<Item = &'static str> {
    others_in(SIMILAR_WORDS, word, |other, word| {
        let (mut left, mut right) = ([0; MAX_WORD_BYTES], [0; MAX_WORD_BYTES]);
        stem(other.as_bytes(), &mut left) == stem(word, &mut right)
    })
}

/// Returns the other words of all lines with a word.
fn others_in<'a>(
    lines: &'static [&'static str],
    word: &'a [u8],
    is_same: fn(&str, &[u8]) -> bool,
) -> impl Iterator<Item = &'static str> + use<'a> {
    let has_word = move |line: &&&str| line.split(' ').any(|other| is_same(other, word));
    let others = lines.iter().filter(has_word);
    others
        .flat_map(|line| line.split(' '))
        .filter(move |other| !is_same(other, word))
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
    // All suffixes end in one of these letters. Most words do not.
    if !matches!(stem.last(), Some(b'd' | b'e' | b'g' | b'n' | b't' | b'y')) {
        return stem;
    }
    stem = strip_suffix(stem, b"ing")
        .or_else(|| strip_suffix(stem, b"ed"))
        .or_else(|| stem.strip_suffix(b"ly").filter(|rest| rest.len() > 3))
        .or_else(|| {
            stem.strip_suffix(b"ion")
                .filter(|rest| rest.len() > 4 && rest.ends_with(b"t"))
        })
        .or_else(|| {
            stem.strip_suffix(b"e")
                .filter(|rest| rest.len() > 5 && rest.ends_with(b"at"))
        })
        .unwrap_or(stem);
    // Like the stems of "relocate" and "recommendation".
    if let Some(rest) = stem.strip_suffix(b"at").filter(|rest| rest.len() > 3) {
        return rest;
    }
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
            "adopt adopts adopted adoption",
            "relocate relocates relocated relocating relocation",
            "recommend recommended recommendation recommendations",
            "create created creating creation",
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
            ("port", "portion"),
            ("nation", "nature"),
        ] {
            assert_ne!(stem_of(left), stem_of(right));
        }
    }
}
