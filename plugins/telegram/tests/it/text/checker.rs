//! An independent parser of the platform's HTML that fails on markup which the platform rejects.

/// Returns the text of a message, or the error in its markup.
pub(crate) fn text_of(html: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(character) = rest.chars().next() {
        match character {
            '<' => {
                let end = rest.find('>').ok_or("a tag without an end")?;
                let tag = &rest[1..end];
                rest = &rest[end + 1..];
                if let Some(name) = tag.strip_prefix('/') {
                    let last = open
                        .pop()
                        .ok_or_else(|| format!("</{name}> closes nothing"))?;
                    if last != name {
                        return Err(format!("</{name}> closes <{last}>"));
                    }
                } else {
                    open.push(checked_tag(tag, &open)?);
                    if rest.starts_with("</") {
                        return Err(format!("<{tag}> is empty"));
                    }
                }
            }
            '>' => return Err("a bare >".to_owned()),
            '&' => {
                let end = rest.find(';').ok_or("an entity without an end")?;
                text.push(match &rest[..=end] {
                    "&lt;" => '<',
                    "&gt;" => '>',
                    "&amp;" => '&',
                    "&quot;" => '"',
                    other => return Err(format!("the entity {other:?}")),
                });
                rest = &rest[end + 1..];
            }
            other => {
                text.push(other);
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    match open.last() {
        Some(tag) => Err(format!("<{tag}> is not closed")),
        None => Ok(text),
    }
}

/// Returns the name of an opening tag, if it may be nested in the open ones.
fn checked_tag<'a>(tag: &'a str, open: &[&str]) -> Result<&'a str, String> {
    let (name, attribute) = tag.split_once(' ').unwrap_or((tag, ""));
    let within = |names: &[&str]| names.iter().any(|name| open.contains(name));
    let attribute_fits = match name {
        "a" => attribute
            .strip_prefix("href=\"")
            .and_then(|value| value.strip_suffix('"'))
            .is_some_and(|value| !value.is_empty() && !value.contains(['"', '<', '>'])),
        "code" if open.last() == Some(&"pre") => attribute
            .strip_prefix("class=\"language-")
            .and_then(|value| value.strip_suffix('"'))
            .is_some_and(|value| !value.is_empty() && !value.contains(['"', '<', '>', ' '])),
        _ => attribute.is_empty(),
    };
    let nests = match name {
        "b" | "i" | "u" | "s" | "tg-spoiler" => !within(&["pre", "code", name]),
        "code" => {
            open.last() == Some(&"pre")
                || !within(&["pre", "code", "a", "b", "i", "u", "s", "tg-spoiler"])
        }
        "pre" => !within(&["pre", "code", "a", "b", "i", "u", "s", "tg-spoiler"]),
        "a" => !within(&["pre", "code", "a"]),
        "blockquote" => open.is_empty(),
        _ => return Err(format!("the tag <{tag}>")),
    };
    match (nests, attribute_fits) {
        (true, true) => Ok(name),
        (false, _) => Err(format!("<{tag}> in {open:?}")),
        (_, false) => Err(format!("the attribute of <{tag}>")),
    }
}

#[test]
fn the_checker_refuses_what_the_platform_refuses() {
    assert_eq!(
        text_of("<b>1 &lt; <i>2</i></b> &amp;&quot;").unwrap(),
        "1 < 2 &\""
    );
    assert_eq!(
        text_of("<pre><code class=\"language-rs\">x</code></pre>").unwrap(),
        "x"
    );
    let bad = [
        "<b>x",
        "x</b>",
        "<b><i>x</b></i>",
        "<p>x</p>",
        "a > b",
        "a < b",
        "&nbsp;",
        "a & b",
        "<a>x</a>",
        "<b></b>",
        "<code><b>x</b></code>",
        "<b><b>x</b></b>",
        "<a href=\"\">x</a>",
        "<b class=\"x\">x</b>",
        "<b><code>x</code></b>",
        "<blockquote><blockquote>x</blockquote></blockquote>",
        "<code class=\"language-rs\">x</code>",
    ];
    for html in bad {
        assert!(text_of(html).is_err(), "{html}");
    }
}
