//! Text styles and their HTML tags.

/// The style of a range of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HtmlStyle {
    /// The number of the quotation that contains the text. It keeps adjacent quotations separate.
    pub(super) quote: Option<usize>,
    /// The index of the address in [`AttributeValues`].
    pub(super) link: Option<usize>,
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) strike: bool,
    pub(super) code: Code,
}

/// Whether a text is code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Code {
    #[default]
    No,
    Inline,
    Block,
    /// A block, and the index of its language in [`AttributeValues`].
    Named(usize),
}

/// Link addresses and code languages, escaped for attributes.
pub(super) type AttributeValues = Vec<String>;

/// An HTML tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Quote(usize),
    Link(usize),
    /// A tag without attributes: its opening and closing form.
    Simple(&'static str, &'static str),
    Pre(usize),
}

impl HtmlStyle {
    /// Returns the tags, outermost first. Tags that the platform does not allow to nest are omitted: code is not bold,
    /// italic or struck through, a link contains no inline code, and a code block contains no link.
    pub(super) fn tags(self) -> impl Iterator<Item = Tag> {
        let block = self.is_block();
        let link = self.link.filter(|_| !block);
        let code = match self.code {
            Code::Inline if link.is_none() => Some(Tag::Simple("<code>", "</code>")),
            Code::Block => Some(Tag::Simple("<pre>", "</pre>")),
            Code::Named(language) => Some(Tag::Pre(language)),
            Code::No | Code::Inline => None,
        };
        let simple =
            |on: bool, open, close| (on && code.is_none()).then_some(Tag::Simple(open, close));
        [
            self.quote.map(Tag::Quote),
            link.map(Tag::Link),
            simple(self.bold, "<b>", "</b>"),
            simple(self.italic, "<i>", "</i>"),
            simple(self.strike, "<s>", "</s>"),
            code,
        ]
        .into_iter()
        .flatten()
    }

    /// Whether the style is a code block.
    pub(super) fn is_block(self) -> bool {
        matches!(self.code, Code::Block | Code::Named(_))
    }

    /// Appends the tags that close this style and open the next one. Shared tags stay open. Returns how many tags were
    /// opened.
    pub(super) fn write_transition(
        self,
        next: Self,
        attributes: &AttributeValues,
        html: &mut String,
    ) -> usize {
        let shared = self
            .tags()
            .zip(next.tags())
            .take_while(|(ours, theirs)| ours == theirs)
            .count();
        let closed: Vec<Tag> = self.tags().skip(shared).collect();
        closed
            .into_iter()
            .rev()
            .for_each(|tag| html.push_str(tag.closing_tag()));
        next.tags()
            .skip(shared)
            .inspect(|tag| tag.write_opening(attributes, html))
            .count()
    }
}

impl Tag {
    fn write_opening(self, attributes: &AttributeValues, html: &mut String) {
        let (prefix, value, suffix) = match self {
            Self::Quote(_) => ("<blockquote>", None, ""),
            Self::Link(address) => ("<a href=\"", attributes.get(address), "\">"),
            Self::Simple(open, _) => (open, None, ""),
            Self::Pre(language) => (
                "<pre><code class=\"language-",
                attributes.get(language),
                "\">",
            ),
        };
        for part in [prefix, value.map_or("", String::as_str), suffix] {
            html.push_str(part);
        }
    }

    fn closing_tag(self) -> &'static str {
        match self {
            Self::Quote(_) => "</blockquote>",
            Self::Link(_) => "</a>",
            Self::Simple(_, close) => close,
            Self::Pre(_) => "</code></pre>",
        }
    }
}

/// Appends text with markup characters escaped.
pub(super) fn push_escaped(text: &str, html: &mut String) {
    for character in text.chars() {
        match character {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            other => html.push(other),
        }
    }
}

/// Returns the length in UTF-16 units, as the platform counts it.
pub(super) fn utf16_length(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}
