//! Glob patterns: `*` matches any text and `?` matches one character.

/// Returns whether the pattern matches the complete text. Wildcards match only characters for which `wild` is true.
pub(super) fn matches(pattern: &str, text: &str, wild: impl Fn(char) -> bool) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The indexes at which to retry after a mismatch: in `pattern`, after the last star; in `text`, after the
    // characters that the star matches. Each retry lets the star match one more character.
    let mut star: Option<(usize, usize)> = None;
    while let Some(&c) = text.get(t) {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            Some('?') if wild(c) => {}
            Some(&literal) if literal == c && literal != '?' => {}
            _ => {
                let Some((after, matched)) =
                    star.filter(|(_, matched)| text.get(*matched).is_some_and(|c| wild(*c)))
                else {
                    return false;
                };
                star = Some((after, matched + 1));
                (p, t) = (after, matched + 1);
                continue;
            }
        }
        (p, t) = (p + 1, t + 1);
    }
    pattern.iter().skip(p).all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        let any = |pattern, text| matches(pattern, text, |_| true);
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "anything\nat all"),
            ("fs.*", "fs.read"),
            ("*.read", "fs.read"),
            ("f?.read", "fs.read"),
            ("a*b*c", "aXbYbZc"),
            ("**", "x"),
            ("*?*", "ä"),
        ] {
            assert!(any(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "x"),
            ("fs.*", "xfs.read"),
            ("fs.", "fs.read"),
            ("?", ""),
            ("a*b", "abc"),
            ("a*b*c", "acb"),
        ] {
            assert!(!any(pattern, text), "{pattern} {text}");
        }
    }

    // Each wildcard matches only accepted characters, also after backtracking.
    #[test]
    fn wildcards_take_only_what_they_may() {
        let safe = |pattern, text| matches(pattern, text, |c| c != ';');
        assert!(safe("a;*", "a;b"));
        assert!(safe("*;*", "a;b"));
        assert!(!safe("a*", "a;b"));
        assert!(!safe("a?b", "a;b"));
        assert!(!safe("*;*", "a;b;c"));
    }

    #[test]
    fn a_pattern_full_of_stars_takes_no_ages() {
        let text = "a".repeat(20_000);
        assert!(!matches(
            &"*a".repeat(50).replace("**", "*"),
            &format!("{text}b"),
            |_| true
        ));
    }
}
