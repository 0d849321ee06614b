//! Converts Markdown to Telegram HTML, in parts that fit into one message.
//!
//! * `document`: parses Markdown into one text with styled ranges; `table` draws tables.
//! * `style`: styles and their tags.
//! * `split`: splits the text into parts, each with complete tags.
//!
//! The platform allows 4096 UTF-16 units per message, not counting tags. It also limits the markup, but does not
//! document that limit. The limit here therefore includes tags, so that a part fits as HTML and as plain text.

mod document;
mod split;
mod style;
mod table;

/// Maximum number of UTF-16 units per message.
pub const MAX_MESSAGE_UNITS: usize = 4096;

/// Maximum number of entities (styled ranges) per message. The platform ignores further ones.
pub const MAX_ENTITIES: usize = 100;

/// A text that fits into one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The text as HTML, for `parse_mode: HTML`.
    pub html: String,
    /// The text without markup, used if the platform rejects the HTML.
    pub plain: String,
}

/// Converts Markdown to messages, in order. Returns no message only if the text has no visible characters.
///
/// ```
/// let parts = bub_telegram::html::render("**bold** & `code`");
/// assert_eq!(parts[0].html, "<b>bold</b> &amp; <code>code</code>");
/// assert_eq!(parts[0].plain, "bold & code");
/// ```
pub fn render(markdown: &str) -> Vec<MessagePart> {
    let document = document::parse_markdown(markdown);
    if document.text.is_empty() {
        // The text is only markup, such as an empty fence: show the markup.
        return split::split_document(&document::StyledText::from_plain_text(markdown));
    }
    split::split_document(&document)
}
