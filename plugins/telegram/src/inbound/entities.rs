//! Marked stretches of a text, whose offsets count UTF-16 units of the text as it was sent.

use std::ops::Range;

use serde_json::{Value, json};

use super::BotIdentity;

/// The text or the caption, with its entities. As in the original, a caption counts when the text has none.
fn text_and_entities(message: &Value) -> (&str, &[Value]) {
    let marked = |text: &str, entities: &str| {
        let entities = message[entities].as_array().map_or(&[][..], Vec::as_slice);
        (message[text].as_str().unwrap_or_default(), entities)
    };
    match marked("text", "entities") {
        ("", _) => marked("caption", "caption_entities"),
        text => text,
    }
}

/// The bytes of an entity, if it lies on whole characters. One that goes beyond the end ends there.
fn range(text: &str, entity: &Value) -> Option<Range<usize>> {
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

/// The addresses in a message, each once.
pub(super) fn links(message: &Value) -> Value {
    let (text, entities) = text_and_entities(message);
    let mut links: Vec<&str> = Vec::new();
    for entity in entities {
        let link = match entity["type"].as_str() {
            Some("text_link") => entity["url"].as_str(),
            Some("url") => range(text, entity)
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

/// The command that a text starts with: its name, whether it may be for this bot, and what follows.
pub(super) fn slash<'a>(
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
    // The platform marks commands; this one also counts without.
    let is_command = is_marked || name == "bub";
    is_command.then_some((
        name,
        bot.eq_ignore_ascii_case(&me.username),
        rest.trim_start(),
    ))
}

/// Whether a message names the bot as the platform does.
pub(super) fn mentions(message: &Value, me: &BotIdentity) -> bool {
    let (text, entities) = text_and_entities(message);
    let is_me = |entity: &Value| {
        entity["type"] == "text_mention" && entity["user"]["id"].as_i64() == Some(me.id)
    };
    let name = format!("@{}", me.username);
    entities.iter().any(is_me) || (!me.username.is_empty() && words(text, &name).next().is_some())
}

/// Whether a message says the word `bub`.
pub(super) fn says_bub(message: &Value) -> bool {
    let (text, entities) = text_and_entities(message);
    // Within an address or somebody else's name the word is not meant.
    let foreign: Vec<Range<usize>> = entities
        .iter()
        .filter(|entity| matches!(entity["type"].as_str(), Some("url" | "email" | "mention")))
        .filter_map(|entity| range(text, entity))
        .collect();
    words(text, "bub").any(|at| {
        let named = text.get(..at).is_some_and(|before| before.ends_with('@'));
        !named && !foreign.iter().any(|range| range.contains(&at))
    })
}

/// A text without the bot's name at its start.
pub(super) fn without_mention<'a>(text: &'a str, me: &BotIdentity) -> &'a str {
    let name = format!("@{}", me.username);
    let trimmed = text.trim_start();
    match words(trimmed, &name).next() {
        Some(0) if !me.username.is_empty() => trimmed.get(name.len()..).unwrap_or_default(),
        _ => text,
    }
}

/// Where a word stands alone, whatever its case.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.char_indices().map(|(at, _)| at).filter(move |at| {
        let end = at + word.len();
        let joins = |character: Option<char>| character.is_some_and(is_letter);
        text.get(*at..end)
            .is_some_and(|found| found.eq_ignore_ascii_case(word))
            && !joins(
                text.get(..*at)
                    .and_then(|before| before.chars().next_back()),
            )
            && !joins(text.get(end..).and_then(|after| after.chars().next()))
    })
}

/// Whether a letter next to a word makes another word of it. In scripts without spaces it does not.
fn is_letter(character: char) -> bool {
    let spaced =
        matches!(character, '\0'..'\u{e00}' | '\u{10a0}'..'\u{1780}' | '\u{1e00}'..'\u{2e80}');
    character == '_' || (spaced && character.is_alphanumeric())
}
