//! Entities: marked ranges of a text. Their offsets count UTF-16 units of the text as it was sent.

use std::ops::Range;

use serde_json::{Value, json};

use super::BotIdentity;

/// Returns the text and its entities. If there is no text, returns the caption, as in the Python version.
fn text_and_entities(message: &Value) -> (&str, &[Value]) {
    let with_entities = |text: &str, entities: &str| {
        let entities = message[entities].as_array().map_or(&[][..], Vec::as_slice);
        (message[text].as_str().unwrap_or_default(), entities)
    };
    match with_entities("text", "entities") {
        ("", _) => with_entities("caption", "caption_entities"),
        text => text,
    }
}

/// Returns the byte range of an entity, or `None` if it splits a character. A range beyond the end is shortened.
fn entity_range(text: &str, entity: &Value) -> Option<Range<usize>> {
    let offset = usize::try_from(entity["offset"].as_u64()?).ok()?;
    let length = usize::try_from(entity["length"].as_u64()?).ok()?;
    let end = offset.saturating_add(length);
    let mut units = 0;
    let mut start = None;
    for (byte, character) in text.char_indices() {
        if units == offset {
            start = Some(byte);
        }
        if units >= end {
            return Some(start?..byte).filter(|_| units == end);
        }
        units += character.len_utf16();
    }
    Some(start?..text.len()).filter(|_| units <= end)
}

/// Returns the distinct link addresses in a message.
pub(super) fn links(message: &Value) -> Value {
    let (text, entities) = text_and_entities(message);
    let mut links: Vec<&str> = Vec::new();
    for entity in entities {
        let link = match entity["type"].as_str() {
            Some("text_link") => entity["url"].as_str(),
            Some("url") => entity_range(text, entity)
                .and_then(|range| text.get(range))
                .map(str::trim),
            _ => None,
        };
        if let Some(link) = link.filter(|link| !link.is_empty() && !links.contains(link)) {
            links.push(link);
        }
    }
    if links.is_empty() {
        Value::Null
    } else {
        json!(links)
    }
}

/// Parses the slash command at the start of a text. Returns its name, whether it may be for this bot, and the rest of
/// the text.
pub(super) fn parse_slash_command<'a>(
    message: &Value,
    text: &'a str,
    me: &BotIdentity,
) -> Option<(&'a str, bool, &'a str)> {
    let (_, entities) = text_and_entities(message);
    let is_marked = entities
        .iter()
        .any(|entity| entity["type"] == "bot_command" && entity["offset"] == 0);
    let command = text.strip_prefix('/')?;
    let (word, rest) = command.split_at(command.find(char::is_whitespace).unwrap_or(command.len()));
    let (name, bot) = word.split_once('@').unwrap_or((word, &me.username));
    // The platform marks commands as entities; `/bub` also counts without one.
    let is_command = is_marked || name == "bub";
    is_command.then_some((
        name,
        bot.eq_ignore_ascii_case(&me.username),
        rest.trim_start(),
    ))
}

/// Whether a message mentions the bot.
pub(super) fn is_bot_mentioned(message: &Value, me: &BotIdentity) -> bool {
    let (text, entities) = text_and_entities(message);
    let is_me = |entity: &Value| {
        entity["type"] == "text_mention" && entity["user"]["id"].as_i64() == Some(me.id)
    };
    let name = format!("@{}", me.username);
    entities.iter().any(is_me)
        || (!me.username.is_empty() && word_offsets(text, &name).next().is_some())
}

/// Whether a message contains the word `bub`.
pub(super) fn has_bub_word(message: &Value) -> bool {
    let (text, entities) = text_and_entities(message);
    // The word does not count inside of an address or another user's name.
    let ignored_ranges: Vec<Range<usize>> = entities
        .iter()
        .filter(|entity| matches!(entity["type"].as_str(), Some("url" | "email" | "mention")))
        .filter_map(|entity| entity_range(text, entity))
        .collect();
    word_offsets(text, "bub").any(|at| {
        let is_mention = text.get(..at).is_some_and(|before| before.ends_with('@'));
        !is_mention && !ignored_ranges.iter().any(|range| range.contains(&at))
    })
}

/// Removes the bot's mention from the start of a text.
pub(super) fn strip_mention<'a>(text: &'a str, me: &BotIdentity) -> &'a str {
    let name = format!("@{}", me.username);
    let trimmed = text.trim_start();
    match word_offsets(trimmed, &name).next() {
        Some(0) if !me.username.is_empty() => trimmed.get(name.len()..).unwrap_or_default(),
        _ => text,
    }
}

/// Returns the byte offsets at which a word occurs as a separate word. Ignores case.
fn word_offsets<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.char_indices().map(|(at, _)| at).filter(move |at| {
        let end = at + word.len();
        let joins_word = |character: Option<char>| character.is_some_and(is_word_character);
        text.get(*at..end)
            .is_some_and(|candidate| candidate.eq_ignore_ascii_case(word))
            && !joins_word(
                text.get(..*at)
                    .and_then(|before| before.chars().next_back()),
            )
            && !joins_word(text.get(end..).and_then(|after| after.chars().next()))
    })
}

/// Whether a character next to a word is part of the word. A character of a script that is written without spaces, such
/// as Chinese, is not.
fn is_word_character(character: char) -> bool {
    let is_spaced_script =
        matches!(character, '\0'..'\u{e00}' | '\u{10a0}'..'\u{1780}' | '\u{1e00}'..'\u{2e80}');
    character == '_' || (is_spaced_script && character.is_alphanumeric())
}
