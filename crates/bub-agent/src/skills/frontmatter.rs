//! Parses and validates the frontmatter of a `SKILL.md`.

use std::borrow::Cow;

use serde_json::{Map, Value};

const MAX_NAME_CHARS: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 1024;

/// The valid frontmatter of a skill.
#[derive(Debug)]
pub(super) struct Frontmatter {
    pub(super) description: String,
    /// The environment variables named in `metadata.env`.
    pub(super) requested_env: Vec<String>,
}

/// Parses the frontmatter of the skill in the directory `name`. The error is the reason why the skill is invalid.
pub(super) fn parse(text: &str, name: &str) -> Result<Frontmatter, String> {
    let text = normalize_line_ends(text);
    let (frontmatter, _) = split_frontmatter(&text)?;
    let value = bub_settings::parse_yaml(frontmatter).map_err(|mut error| {
        // The parser counts lines from the start of the frontmatter. The error must count from the start of the file.
        let blank_lines = text.lines().take_while(|line| line.trim().is_empty());
        error.line += 1 + blank_lines.count();
        error.to_string()
    })?;
    let Value::Object(map) = value else {
        return Err("invalid frontmatter: expected a map of `key: value`".into());
    };
    let fields = map.into_iter();
    let fields: Map<_, _> = fields
        .map(|(key, value)| (key.to_lowercase(), value))
        .collect();
    check_name(required_text(&fields, "name")?, name)?;
    let description = required_text(&fields, "description")?;
    if description.chars().count() > MAX_DESCRIPTION_CHARS {
        return Err(format!(
            "`description` is longer than {MAX_DESCRIPTION_CHARS} characters"
        ));
    }
    Ok(Frontmatter {
        description: description.to_owned(),
        requested_env: requested_variables(fields.get("metadata"))?,
    })
}

/// Returns description, variables and body of a `SKILL.md`, for fuzz tests.
#[doc(hidden)]
pub fn read_skill(text: &str, name: &str) -> Result<(String, Vec<String>, String), String> {
    let parsed = parse(text, name)?;
    let body = strip_frontmatter(text);
    Ok((parsed.description, parsed.requested_env, body))
}

/// Returns the text after the frontmatter, trimmed.
pub(super) fn strip_frontmatter(text: &str) -> String {
    let text = normalize_line_ends(text);
    split_frontmatter(&text)
        .map_or("", |(_, body)| body.trim())
        .to_owned()
}

/// Validates the name of the skill in `directory`. The error is the reason why the name is invalid.
pub(super) fn check_name(name: &str, directory: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(is_allowed);
    if name.chars().count() > MAX_NAME_CHARS {
        return Err(format!("`name` is longer than {MAX_NAME_CHARS} characters"));
    }
    if !name.split('-').all(is_word) {
        return Err(format!(
            "invalid `name` {name:?}: use a-z and 0-9, with single hyphens between words"
        ));
    }
    if name != directory {
        return Err(format!(
            "`name` is {name:?}, but the directory is {directory:?}: rename one of them"
        ));
    }
    Ok(())
}

/// Splits a file into the YAML between the first two `---` lines and the text after them.
fn split_frontmatter(text: &str) -> Result<(&str, &str), String> {
    let (first, rest) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    if first.trim_end() != "---" {
        return Err("missing frontmatter: the first line must be `---`".into());
    }
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim() == "---" {
            let (frontmatter, body) = rest.split_at(length);
            return Ok((frontmatter, body.strip_prefix(line).unwrap_or_default()));
        }
        length += line.len();
    }
    Err("unclosed frontmatter: add a line `---` after it".into())
}

/// Converts line endings to `\n` and removes a byte order mark.
fn normalize_line_ends(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        text.into()
    }
}

/// Returns a required field as trimmed text. The error is the reason why the field is invalid.
fn required_text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Err(format!("`{key}` is missing; add it to the frontmatter")),
        Some(Value::String(text)) if text.trim().is_empty() => {
            Err(format!("`{key}` is empty; add a text"))
        }
        Some(Value::String(text)) => Ok(text.trim()),
        Some(_) => Err(format!("`{key}` is not a string; put it in quotes")),
    }
}

/// Returns the variables in `metadata.env`, which are separated by commas or spaces.
fn requested_variables(metadata: Option<&Value>) -> Result<Vec<String>, String> {
    let entries = match metadata {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(_) => return Err("invalid `metadata`: expected a map of strings".into()),
    };
    if let Some((key, _)) = entries.iter().find(|(_, value)| !value.is_string()) {
        return Err(format!(
            "`metadata.{key}` is not a string; put it in quotes"
        ));
    }
    let names = entries
        .get("env")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let names = names
        .split([',', ' ', '\n'])
        .filter(|name| is_variable_name(name));
    Ok(names.map(str::to_owned).collect())
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}
