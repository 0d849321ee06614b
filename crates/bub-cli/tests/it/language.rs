//! The language of the repository: tags of behaviors resolve, and retired words do not occur.

mod source;
mod words;

use std::collections::{HashMap, HashSet};

use self::{
    source::{Class, Source},
    words::{ALLOWED, CONSTANT_PARTS, ERROR_PHRASES, NAME_PARTS, NAMES, PHRASES},
};
use crate::sandbox::root;

/// Families of tags: the letter, the characters that may follow it, and the prefix of the anchor.
const FAMILIES: &[(char, char, &str)] = &[
    ('S', '-', "s-"),
    ('H', '-', "h-"),
    ('W', '-', "w-"),
    ('C', '-', "c-"),
    ('C', '.', "c-"),
    ('P', '-', "p-"),
    ('P', '.', "p-sec-"),
    ('B', '.', "b-"),
    ('E', '.', "e-"),
];

#[test]
fn every_tag_resolves() {
    let anchors = anchors();
    let mut unresolved = Vec::new();
    let mut count = 0;
    for file in source::files() {
        if !has_tags(&file.path) {
            continue;
        }
        for (offset, tag, anchor) in tags(&file) {
            count += 1;
            if !anchors.contains(&anchor) {
                unresolved.push(format!(
                    "{}:{}: {tag} has no entry in docs/spec",
                    file.path,
                    file.line_number(offset)
                ));
            }
        }
    }
    assert!(unresolved.is_empty(), "{}", unresolved.join("\n"));
    assert!(count > 500, "only {count} tags found");
}

#[test]
fn tags_are_found_in_all_their_forms() {
    let found = |text: &str| -> Vec<String> {
        let file = Source::parse("a.rs", text.to_owned());
        tags(&file)
            .into_iter()
            .map(|(_, _, anchor)| anchor)
            .collect()
    };
    assert_eq!(found("// S-18, W-3: x"), ["s-18", "w-3"]);
    assert_eq!(
        found("// C.1, C-2, P.4 and B.18."),
        ["c-1", "c-2", "p-sec-4", "b-18"]
    );
    assert_eq!(found("/// H-33…H-36"), ["h-33", "h-34", "h-35", "h-36"]);
    assert_eq!(found("//! S-1 to S-3"), ["s-1", "s-2", "s-3"]);
    assert_eq!(found("// L1, Design §5"), ["l1", "design-5"]);
    assert_eq!(
        found("let s = \"S-1\"; // SHA-256, UTF-8, L10n, XS-4"),
        [""; 0]
    );
    assert_eq!(
        found("let c = 'a'; let r = r#\"// S-1\"#; /* S-2 */"),
        ["s-2"]
    );
}

#[test]
fn code_is_separated_from_prose() {
    let text = "#[test]\nfn a_b() { let c = \"d\\n\"; } // e\nfn f() {}";
    let file = Source::parse("a.rs", text.to_owned());
    let prose = String::from_utf8(file.prose).unwrap().replace('\0', " ");
    assert_eq!(prose.split_whitespace().collect::<Vec<_>>(), ["d", "e"]);
    let tests = file.names.iter().filter(|name| name.is_test);
    let tests: Vec<_> = tests.map(|name| (name.offset, &*name.text)).collect();
    assert_eq!(tests, [(11, "a_b")]);
}

fn has_tags(path: &str) -> bool {
    matches!(source::extension(path), "rs" | "md" | "py") && !path.ends_with("it/language.rs")
}

/// The anchors of the pages in docs/spec. Each occurs once.
fn anchors() -> HashSet<String> {
    let mut anchors = HashSet::new();
    for page in std::fs::read_dir(root().join("docs/spec")).unwrap() {
        let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
        for rest in text.split("<a id=\"").skip(1) {
            let anchor = rest.split('"').next().unwrap().to_owned();
            assert!(anchors.insert(anchor.clone()), "{anchor} occurs twice");
        }
    }
    anchors
}

/// The tags in the comments of a file: where they are, what they look like, and their anchors. Ranges are expanded.
fn tags(file: &Source) -> Vec<(usize, String, String)> {
    let comments = file.text.bytes().zip(&file.classes);
    let comments = comments.map(|(byte, class)| if *class == Class::Comment { byte } else { 0 });
    let comments = String::from_utf8(comments.collect()).unwrap();
    let is_boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let mut tags: Vec<(usize, String, String)> = Vec::new();
    // The end of the last tag, the prefix of its anchor, and its number.
    let mut last: Option<(usize, &str, u32)> = None;
    for (at, _) in comments.char_indices() {
        let rest = &comments[at..];
        if !is_boundary(comments[..at].chars().next_back()) || comments[..at].ends_with(['-', '§'])
        {
            continue;
        }
        let Some((prefix, marker)) = tag_start(rest) else {
            continue;
        };
        let digits: String = rest[marker..]
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let end = marker + digits.len();
        let Ok(number) = digits.parse::<u32>() else {
            continue;
        };
        if !is_boundary(rest[end..].chars().next()) {
            continue;
        }
        let first = match last {
            Some((before, last_prefix, last_number))
                if last_prefix == prefix && is_range(&comments[before..at]) =>
            {
                last_number + 1
            }
            _ => number,
        };
        for number in first..=number {
            tags.push((at, rest[..end].to_owned(), format!("{prefix}{number}")));
        }
        last = Some((at + end, prefix, number));
    }
    tags
}

/// The prefix of the anchor and the length of what precedes the number, if a tag may start here.
fn tag_start(text: &str) -> Option<(&'static str, usize)> {
    let mut chars = text.chars();
    let (letter, mark) = (chars.next()?, chars.next()?);
    if letter == 'L' && mark.is_ascii_digit() {
        return Some(("l", 1));
    }
    if text.starts_with("design §") || text.starts_with("Design §") {
        return Some(("design-", "design §".len()));
    }
    let family = FAMILIES
        .iter()
        .find(|family| family.0 == letter && family.1 == mark)?;
    Some((family.2, 2))
}

fn is_range(between: &str) -> bool {
    matches!(between.trim(), "…" | ".." | "..." | "–" | "to")
}

#[test]
fn retired_words_do_not_occur() {
    let files = source::files();
    let checker = Checker::new(source::test_names(&files));
    let mut hits = Vec::new();
    for file in &files {
        if !file.path.contains("tests/it/language") {
            hits.extend(checker.check(file));
        }
    }
    assert!(
        hits.is_empty(),
        "{} retired words:\n{}",
        hits.len(),
        hits.join("\n")
    );
}

#[test]
fn retired_words_are_found_in_comments_literals_and_names() {
    let checker = Checker::new(HashSet::from(["nobody_waits".to_owned()]));
    let hits = |path: &str, text: &str| -> Vec<String> {
        let hits = checker.check(&Source::parse(path, text.to_owned()));
        let word = |hit: &String| hit.split('`').nth(1).unwrap_or_default().to_owned();
        hits.iter().map(word).collect()
    };
    let rust = |text: &str| hits("crates/a/src/b.rs", text);
    assert_eq!(
        rust("/// Done by\n/// itself, for Nobody's use."),
        ["by itself", "Nobody"]
    );
    assert_eq!(rust("let a = \"left \\\n out\\n\";"), ["left out"]);
    assert_eq!(rust("let a = \"left\"; // out"), [""; 0]);
    assert_eq!(
        rust("struct PluginDesk; const MOST_BYTES: u8 = 1; let most = 1;"),
        ["PluginDesk", "MOST_BYTES"]
    );
    assert_eq!(
        rust("#[test]\nfn nobody_waits() {}\nfn told() {}"),
        ["told"]
    );
    assert_eq!(
        rust("// There is no need.\nlet a = \"there is no file\";"),
        ["there is no"]
    );
    assert_eq!(
        rust("let a = (\"it is no file\", \"is no longer used\");"),
        ["is no"]
    );
    assert_eq!(
        hits("docs/a.md", "Colourful\ncatalogues"),
        ["Colourful", "catalogues"]
    );
    assert_eq!(
        hits("docs/a.md", "`was_told` and `x is None`"),
        ["was_told"]
    );
    assert_eq!(hits("a.py", "x is None  # somebody"), ["somebody"]);
    assert_eq!(hits("a.toml", "# so\n# many"), ["so many"]);
}

/// Finds retired words.
struct Checker {
    /// Phrases by the first three letters: the words, what to write instead, and whether they are for errors only.
    phrases: HashMap<String, Vec<Phrase>>,
    test_names: HashSet<String>,
}

struct Phrase {
    text: &'static str,
    words: Vec<&'static str>,
    instead: &'static str,
    is_for_errors: bool,
}

impl Checker {
    fn new(test_names: HashSet<String>) -> Self {
        let mut phrases: HashMap<String, Vec<Phrase>> = HashMap::new();
        for (table, is_for_errors) in [(PHRASES, false), (ERROR_PHRASES, true)] {
            for (text, instead) in table {
                let phrase = Phrase {
                    text,
                    words: text.split(' ').collect(),
                    instead,
                    is_for_errors,
                };
                phrases.entry(start(text)).or_default().push(phrase);
            }
        }
        Self {
            phrases,
            test_names,
        }
    }

    fn check(&self, file: &Source) -> Vec<String> {
        let mut hits: Vec<(usize, String, &str)> = Vec::new();
        for name in file.names.iter().filter(|name| !name.is_test) {
            let instead = self.check_name(&name.text);
            hits.extend(instead.map(|instead| (name.offset, name.text.clone(), instead)));
        }
        let words = words(&file.prose);
        for (index, (at, end)) in words.iter().enumerate() {
            let word = &file.text[*at..*end];
            if word.contains('_') {
                let instead = self.check_name(word);
                let instead = instead.filter(|_| !is_allowed(file, *at, word));
                hits.extend(instead.map(|instead| (*at, word.to_owned(), instead)));
                continue;
            }
            for phrase in self.phrases.get(&start(word)).into_iter().flatten() {
                if let Some(last) = matches(file, &words, index, phrase)
                    && !is_allowed(file, *at, phrase.text)
                {
                    let text = String::from_utf8_lossy(&file.prose[*at..last]);
                    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    hits.push((*at, text, phrase.instead));
                }
            }
        }
        hits.sort();
        let message = |(at, word, instead): (usize, String, &str)| {
            let line = file.line_number(at);
            format!("{}:{line}: `{word}`: write {instead}", file.path)
        };
        hits.into_iter().map(message).collect()
    }

    /// What to write instead of an identifier. Names of tests are sentences and are not checked.
    fn check_name(&self, name: &str) -> Option<&'static str> {
        if self.test_names.contains(name) {
            return None;
        }
        let find = |table: &[(&str, &'static str)], word: &str| {
            let row = table.iter().find(|(retired, _)| *retired == word);
            row.map(|(_, instead)| *instead)
        };
        if let Some(instead) = find(NAMES, name) {
            return Some(instead);
        }
        let parts = parts(name);
        let is_constant = name.len() > 1 && !name.contains(|c: char| c.is_ascii_lowercase());
        parts.iter().find_map(|part| {
            let limit = is_constant.then(|| find(CONSTANT_PARTS, part)).flatten();
            find(NAME_PARTS, part).or(limit)
        })
    }
}

/// Where the phrase ends, if it starts at the word `index`.
fn matches(
    file: &Source,
    words: &[(usize, usize)],
    index: usize,
    phrase: &Phrase,
) -> Option<usize> {
    let found = words.get(index..index + phrase.words.len())?;
    let text = |(at, end): (usize, usize)| file.text[at..end].to_lowercase();
    let is_equal = found.iter().zip(&phrase.words).all(|(at, word)| {
        let text = text(*at);
        match word.strip_suffix('*') {
            Some(start) => text.starts_with(start),
            None => text == *word,
        }
    });
    let is_joined = found.windows(2).all(|pair| {
        let between = &file.prose[pair[0].1..pair[1].0];
        between.iter().all(u8::is_ascii_whitespace)
    });
    let (first, last) = (found.first()?.0, found.last()?.1);
    let is_meant = !phrase.is_for_errors || {
        let next = words.get(index + phrase.words.len());
        let before = index.checked_sub(1).map(|before| text(words[before]));
        file.is_production()
            && file.classes[first] == Class::Literal
            && next.is_none_or(|next| text(*next) != "longer")
            && (phrase.words.len() > 2 || before.as_deref() != Some("there"))
    };
    (is_equal && is_joined && is_meant).then_some(last)
}

fn is_allowed(file: &Source, offset: usize, phrase: &str) -> bool {
    let line = file.line(offset);
    ALLOWED.iter().any(|(path, allowed, text, _)| {
        file.path.starts_with(path) && *allowed == phrase && line.contains(text)
    })
}

/// The first three letters of a word, by which phrases are found.
fn start(word: &str) -> String {
    let word = word.split([' ', '*']).next().unwrap_or(word);
    word.chars().take(3).collect::<String>().to_lowercase()
}

/// Where the words of a text start and end. Identifiers with underscores are one word.
fn words(prose: &[u8]) -> Vec<(usize, usize)> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut words = Vec::new();
    let mut at = 0;
    while at < prose.len() {
        let length = prose[at..]
            .iter()
            .take_while(|byte| is_letter(byte))
            .count();
        if length > 0 {
            words.push((at, at + length));
        }
        at += length.max(1);
    }
    words
}

/// The words of an identifier in lower case: `PluginDesk` and `plugin_desk` have the same.
fn parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for piece in name.split('_') {
        let mut part = String::new();
        let mut was_lower = false;
        for c in piece.chars() {
            if c.is_ascii_uppercase() && was_lower {
                parts.push(std::mem::take(&mut part));
            }
            was_lower = !c.is_ascii_uppercase();
            part.push(c.to_ascii_lowercase());
        }
        parts.push(part);
    }
    parts
}
