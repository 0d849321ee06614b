//! Markdown as Telegram HTML, in parts that fit into one message.
//!
//! * `document`: Markdown read into one text with a style for each stretch of it; `table` draws tables.
//! * `style`: styles and their tags.
//! * `split`: the text cut into parts, each with its own tags.
//!
//! A message has at most 4096 UTF-16 units once its tags are read. Here that bounds the markup as well, since the
//! platform also limits, without saying where, how much markup it reads. So a part fits either way it is sent.

mod document;
mod split;
mod style;
mod table;

/// The UTF-16 units that one message may have.
pub const MAX_MESSAGE_UNITS: usize = 4096;

/// The stretches of marked text that one message may have; the platform forgets those beyond.
pub const MAX_ENTITIES: usize = 100;

/// A text that fits into one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// For `parse_mode: HTML`.
    pub html: String,
    /// The same text without markup, for when the platform refuses the markup.
    pub plain: String,
}

/// A Markdown text as messages, in order. There is none only if nothing in the text can be seen.
pub fn render(markdown: &str) -> Vec<MessagePart> {
    let document = document::read(markdown);
    if document.text.is_empty() {
        // All of it is markup, such as an empty fence: then the markup is what the text says.
        return split::split(&document::StyledText::plain(markdown));
    }
    split::split(&document)
}
