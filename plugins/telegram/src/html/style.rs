//! Styles of a stretch of text, and the tags that stand for them.

/// How a stretch of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HtmlStyle {
    /// Which quotation of the document: neighbours stay apart.
    pub(super) quote: Option<usize>,
    /// The place of the address in [`AttributeValues`].
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
    /// A block, and the place of its language in [`AttributeValues`].
    Named(usize),
}

/// Addresses of links and languages of code, as they stand in attributes.
pub(super) type AttributeValues = Vec<String>;

/// One tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Quote(usize),
    Link(usize),
    /// A tag without attributes: how it opens and closes.
    Simple(&'static str, &'static str),
    Pre(usize),
}

impl HtmlStyle {
    /// The tags, outermost first. What the platform does not let nest is left out: code takes no other style, and a
    /// link contains no code.
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

    /// Whether a text of this style is a block of code.
    pub(super) fn is_block(self) -> bool {
        matches!(self.code, Code::Block | Code::Named(_))
    }

    /// Appends what closes this style and opens the next; tags that both have stay open. How many it opens.
    pub(super) fn write_transition(
        self,
        next: Self,
        names: &AttributeValues,
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
            .for_each(|tag| html.push_str(tag.close()));
        next.tags()
            .skip(shared)
            .inspect(|tag| tag.open(names, html))
            .count()
    }
}

impl Tag {
    fn open(self, names: &AttributeValues, html: &mut String) {
        let (before, name, after) = match self {
            Self::Quote(_) => ("<blockquote>", None, ""),
            Self::Link(address) => ("<a href=\"", names.get(address), "\">"),
            Self::Simple(open, _) => (open, None, ""),
            Self::Pre(language) => ("<pre><code class=\"language-", names.get(language), "\">"),
        };
        for piece in [before, name.map_or("", String::as_str), after] {
            html.push_str(piece);
        }
    }

    fn close(self) -> &'static str {
        match self {
            Self::Quote(_) => "</blockquote>",
            Self::Link(_) => "</a>",
            Self::Simple(_, close) => close,
            Self::Pre(_) => "</code></pre>",
        }
    }
}

/// Appends text, so that none of it is markup.
pub(super) fn escape(text: &str, html: &mut String) {
    for character in text.chars() {
        match character {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            other => html.push(other),
        }
    }
}

/// UTF-16 units, in which the platform counts.
pub(super) fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}
