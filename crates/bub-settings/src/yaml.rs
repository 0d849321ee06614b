//! Reads YAML as the Python version does, with the line of every value.
//!
//! Only this module depends on the YAML library. It uses the parser's events instead of serde,
//! because settings need three things that serde hides: the line of each value, the text as
//! written, and errors that do not quote a file full of keys.
//!
//! The table lists the decisions where YAML versions and libraries disagree. "As `PyYAML`" means
//! that the Python version reads the same value.
//!
//! | written | read as |
//! |---|---|
//! | `yes` `no` `on` `off` `true` `false` | booleans, as `PyYAML`; `y` and `n` are text, as `PyYAML` |
//! | `~`, `null`, nothing | null, as `PyYAML` |
//! | `1_000`, `0x1f`, `0b11`, `017` (octal, 15) | whole numbers, as `PyYAML`; `0o17` is text, as `PyYAML` |
//! | `1e3`, `1.5e3`, `-.5` | numbers; `PyYAML` reads text, which is never intended |
//! | `12:30:45`, dates, `.inf`, `.nan` | text; `PyYAML` reads 45045, a date, a float |
//! | a key twice in one map | the last one is used, as `PyYAML`, with a warning |
//! | `<<: *base` | merged, keys beside it take precedence, as `PyYAML` |
//! | `!tag value` | an error that says to quote it, as `PyYAML`; `!!str` and friends work |
//! | `"text` and `more"` at the start of the next line | one text, as `PyYAML` |
//! | two documents in one file | an error, as `PyYAML` |
//! | `key:` of any scalar kind | the text of the key; a list or map as a key is an error |
//!
//! The table applies to values without a declared type, such as those inside `client_args`. For a
//! declared setting, its kind decides: `api_key: 0123` is the text `0123`.

use std::borrow::Cow;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::node::{Node, NodeData, NodeMap};
use crate::{SettingSource, display};

mod scalar;

pub(crate) use scalar::plain_scalar_atom;

/// Maximum number of values in a file. It stops a file whose aliases multiply.
const MAX_NODES: usize = 20_000;

/// A file that cannot be parsed.
pub(crate) struct YamlProblem {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) text: String,
    /// Whether a quoted text continues at the start of a line, which `PyYAML` allows.
    is_outdented: bool,
}

/// A parsed file.
pub(crate) struct YamlDocument {
    /// `None` for an empty file.
    pub(crate) root: Option<Node>,
    /// Keys that occur twice in one map, with the source of the second occurrence.
    pub(crate) duplicates: Vec<(String, SettingSource)>,
}

/// Maximum number of lines on which quoted text continues without indentation.
const MAX_OUTDENTED_LINES: usize = 100;

/// Parses one document; `origin` returns the source for a line.
pub(crate) fn parse(
    text: &str,
    origin: &dyn Fn(usize) -> SettingSource,
) -> Result<YamlDocument, YamlProblem> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_OUTDENTED_LINES {
        match parse_strictly(&text, origin) {
            // Leading blanks of such a line have no meaning, so blanks can be added.
            Err(problem) if problem.is_outdented => {
                text = Cow::Owned(indent_line(&text, problem.line));
            }
            result => return result,
        }
    }
    parse_strictly(&text, origin)
}

/// Returns the text with one line indented by 64 blanks, so that the line belongs to any block
/// around it.
fn indent_line(text: &str, line: usize) -> String {
    let lines = text.split_inclusive('\n').enumerate();
    lines.fold(
        String::with_capacity(text.len() + 64),
        |mut whole, (index, text)| {
            if index + 1 == line {
                whole.push_str(&" ".repeat(64));
            }
            whole + text
        },
    )
}

fn parse_strictly(
    text: &str,
    origin: &dyn Fn(usize) -> SettingSource,
) -> Result<YamlDocument, YamlProblem> {
    let mut options = Options::default();
    options.emit_comments = false;
    let mut composer = Composer {
        events: Parser::new_from_str_with_options(
            text.strip_prefix('\u{feff}').unwrap_or(text),
            options,
        ),
        origin,
        anchors: Vec::new(),
        duplicates: Vec::new(),
        nodes: 0,
    };
    let root = composer.compose_document()?;
    Ok(YamlDocument {
        root: root.filter(|root| !root.is_null()),
        duplicates: composer.duplicates,
    })
}

/// Reads a YAML document without settings, such as the frontmatter of a skill. An empty document is
/// null.
pub fn parse_yaml(text: &str) -> Result<serde_json::Value, YamlError> {
    let document = parse(text, &|_| SettingSource::Default);
    let document = document.map_err(
        |YamlProblem {
             line, column, text, ..
         }| YamlError {
            line,
            column,
            problem: text,
        },
    )?;
    Ok(document
        .root
        .as_ref()
        .map(display::undeclared_to_value)
        .unwrap_or_default())
}

/// Error for text that is not valid YAML. It quotes nothing of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: not valid YAML: {problem}")]
pub struct YamlError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// Problem that the parser reported.
    pub problem: String,
}

struct Composer<'a, P> {
    events: P,
    origin: &'a dyn Fn(usize) -> SettingSource,
    /// Finished anchored nodes by the parser's anchor id.
    anchors: Vec<(usize, Rc<Node>)>,
    duplicates: Vec<(String, SettingSource)>,
    nodes: usize,
}

type YamlEvent<'i> = (Event<'i>, Span);

impl<'i, P: Iterator<Item = Result<YamlEvent<'i>, ScanError>>> Composer<'_, P> {
    fn compose_document(&mut self) -> Result<Option<Node>, YamlProblem> {
        let mut root = None;
        loop {
            match self.next_event()? {
                (Event::StreamStart | Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentStart(..), span) if root.is_some() => {
                    return Err(problem_at(
                        &span,
                        "more than one document; remove the other documents",
                    ));
                }
                (Event::DocumentStart(..), _) => {
                    let first = self.next_event()?;
                    root = Some(self.compose_node(first)?);
                }
                (_, span) => return Err(problem_at(&span, "unexpected content")),
            }
        }
    }

    fn next_event(&mut self) -> Result<YamlEvent<'i>, YamlProblem> {
        match self.events.next() {
            Some(Ok(item)) => Ok(item),
            Some(Err(error)) => {
                let marker = error.marker();
                Err(YamlProblem {
                    line: marker.line().max(1),
                    column: marker.col() + 1,
                    text: error.info(),
                    is_outdented: matches!(error.kind(), ErrorKind::InvalidQuotedScalarIndent),
                })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn compose_node(&mut self, (event, span): YamlEvent<'i>) -> Result<Node, YamlProblem> {
        self.count_nodes(1, &span)?;
        let origin = (self.origin)(span.start.line().max(1));
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let atom = scalar::scalar_atom(
                    &text,
                    style == ScalarStyle::Plain,
                    tag.as_deref().map(core_tag),
                )
                .ok_or_else(|| problem_at(&span, "unknown tag; put quotes around the value"))?;
                (anchor, Node::scalar(text.into_owned(), atom, origin))
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_collection_tag(tag.as_deref(), "seq", &span)?;
                (
                    anchor,
                    Node {
                        data: NodeData::List(self.compose_list()?),
                        origin,
                    },
                )
            }
            Event::MappingStart(_, anchor, tag) => {
                check_collection_tag(tag.as_deref(), "map", &span)?;
                (
                    anchor,
                    Node {
                        data: NodeData::Map(self.compose_map()?),
                        origin,
                    },
                )
            }
            Event::Alias(id) => return self.resolve_alias(id, &span),
            _ => return Err(problem_at(&span, "expected a value")),
        };
        if anchor != 0 {
            self.count_nodes(node.node_count(), &span)?;
            self.anchors.push((anchor, Rc::new(node.clone())));
        }
        Ok(node)
    }

    fn compose_list(&mut self) -> Result<Vec<Node>, YamlProblem> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(items),
                item => items.push(self.compose_node(item)?),
            }
        }
    }

    fn compose_map(&mut self) -> Result<NodeMap, YamlProblem> {
        let (mut map, mut merged) = (NodeMap::default(), Vec::new());
        loop {
            let (event, span) = match self.next_event()? {
                (Event::MappingEnd, _) => break,
                item => item,
            };
            let plain = matches!(event, Event::Scalar(_, ScalarStyle::Plain, _, None));
            let NodeData::Scalar(key) = self.compose_node((event, span))?.data else {
                return Err(problem_at(&span, "a key must be text"));
            };
            let value = self.next_event()?;
            let value = self.compose_node(value)?;
            if plain && key.text == "<<" {
                merged.extend(
                    merge_key_maps(value)
                        .ok_or_else(|| problem_at(&span, "`<<` needs a map or a list of maps"))?,
                );
            } else if map.insert(key.text.clone(), value).is_some() {
                self.duplicates
                    .push((key.text, (self.origin)(span.start.line().max(1))));
            }
        }
        for (key, value) in merged.into_iter().flat_map(NodeMap::into_entries) {
            if map.get(&key).is_none() {
                map.insert(key, value);
            }
        }
        Ok(map)
    }

    fn resolve_alias(&mut self, id: usize, span: &Span) -> Result<Node, YamlProblem> {
        let anchored = self.anchors.iter().find(|(anchor, _)| *anchor == id);
        let (_, node) = anchored.ok_or_else(|| {
            problem_at(
                span,
                "an alias refers to the value that contains it; remove the alias",
            )
        })?;
        // Shared, so that nothing is copied before it is counted.
        let node = Rc::clone(node);
        self.count_nodes(node.node_count(), span)?;
        Ok(Node::clone(&node))
    }

    fn count_nodes(&mut self, nodes: usize, span: &Span) -> Result<(), YamlProblem> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(problem_at(span, "more than 20000 values; shorten the file"));
        }
        Ok(())
    }
}

/// Returns the maps of a merge key; the first one has the highest precedence.
fn merge_key_maps(value: Node) -> Option<Vec<NodeMap>> {
    let map = |node: Node| match node.data {
        NodeData::Map(map) => Some(map),
        NodeData::Scalar(_) | NodeData::List(_) => None,
    };
    match value.data {
        NodeData::List(items) => items.into_iter().map(map).collect(),
        data => Some(vec![map(Node {
            data,
            origin: value.origin,
        })?]),
    }
}

/// Returns the name of a standard tag (`str`), or an empty name for an unknown tag.
fn core_tag(tag: &Tag) -> &str {
    match (tag.handle(), tag.suffix()) {
        ("tag:yaml.org,2002:" | "!!", suffix) => suffix,
        // A single `!` means text.
        ("!", "") | ("", "!" | "") => "str",
        _ => "",
    }
}

fn check_collection_tag(tag: Option<&Tag>, name: &str, span: &Span) -> Result<(), YamlProblem> {
    match tag.map(core_tag) {
        Some(tag) if tag != name => Err(problem_at(span, "unknown tag; remove it")),
        _ => Ok(()),
    }
}

fn problem_at(span: &Span, text: &str) -> YamlProblem {
    let (line, column) = (span.start.line().max(1), span.start.col() + 1);
    YamlProblem {
        line,
        column,
        text: text.to_owned(),
        is_outdented: false,
    }
}

#[cfg(test)]
mod tests;
