//! Validates message texts like the real server: closed tags and limited length.

use serde_json::Value;

/// Tags that the real server supports.
const TAGS: [&str; 17] = [
    "b",
    "strong",
    "i",
    "em",
    "u",
    "ins",
    "s",
    "strike",
    "del",
    "span",
    "tg-spoiler",
    "a",
    "tg-emoji",
    "code",
    "pre",
    "blockquote",
    "br",
];

/// Returns the text of a message without markup, or the reason why the real server rejects it.
pub(super) fn plain_text(
    params: &Value,
    name: &str,
    max_utf16_units: usize,
) -> Result<String, String> {
    let text = params[name].as_str().unwrap_or_default();
    let text = match params["parse_mode"].as_str() {
        Some("HTML") => {
            parse_html(text).map_err(|reason| format!("can't parse entities: {reason}"))?
        }
        Some(other) => return Err(format!("unsupported parse_mode {other}")),
        None => text.to_owned(),
    };
    if name == "text" && text.trim().is_empty() {
        return Err("message text is empty".to_owned());
    }
    if text.encode_utf16().count() > max_utf16_units {
        return Err(if name == "text" {
            "message is too long"
        } else {
            "message caption is too long"
        }
        .to_owned());
    }
    Ok(text)
}

fn parse_html(html: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(at) = rest.find(['<', '&', '>']) {
        text.push_str(rest.get(..at).unwrap_or_default());
        let tail = rest.get(at..).unwrap_or_default();
        if tail.starts_with('&') {
            let end = tail
                .find(';')
                .filter(|end| *end < 10)
                .ok_or("an & that does not start an entity")?;
            text.push_str(match tail.get(..=end).unwrap_or_default() {
                "&lt;" => "<",
                "&gt;" => ">",
                "&amp;" => "&",
                "&quot;" => "\"",
                other => return Err(format!("unknown entity {other}")),
            });
            rest = tail.get(end + 1..).unwrap_or_default();
            continue;
        }
        if tail.starts_with('>') {
            return Err("a stray >".to_owned());
        }
        let end = tail.find('>').ok_or("Unclosed start tag")?;
        let tag = tail.get(1..end).unwrap_or_default();
        rest = tail.get(end + 1..).unwrap_or_default();
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("Unmatched end tag \"{name}\""));
            }
            continue;
        }
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        if !TAGS.contains(&name) {
            return Err(format!("Unsupported start tag \"{name}\""));
        }
        open.push(name);
    }
    text.push_str(rest);
    match open.last() {
        Some(name) => Err(format!(
            "Can't find end tag corresponding to start tag \"{name}\""
        )),
        None => Ok(text),
    }
}
