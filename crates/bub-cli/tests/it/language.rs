//! The language of the repository: tags of behaviors resolve.

mod source;

use std::collections::HashSet;

use self::source::{Class, Source};
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
