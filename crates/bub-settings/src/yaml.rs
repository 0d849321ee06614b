//! Reads YAML as the Python version does, with the line of every value.
//!
//! Only this module depends on the YAML library. It uses the parser's events instead of serde,
//! because settings need three things that serde hides: the line of each value, the text as
//! written, and errors that do not quote the file, which may contain API keys.
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
//! | `!tag value` | an error that says to quote it, as `PyYAML`; standard tags such as `!!str` work |
//! | `"text` and `more"` at the start of the next line | one text, as `PyYAML` |
//! | two documents in one file | an error, as `PyYAML` |
//! | a number, boolean or null as a key | the text of the key; a list or map as a key is an error |
//!
//! The table applies to values without a declared type, such as those inside `client_args`. In
//! [`parse_yaml`], `1e3` and `1.5e3` are text. For a declared setting, its kind decides, so
//! `api_key: 0123` is the text `0123`.

use std::borrow::Cow;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Marker, Options, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::Value;

use crate::node::{Node, NodeData, NodeMap};
use crate::{SettingSource, SettingsError, display};

mod scalar;

pub(crate) use scalar::plain_scalar_atom;

/// Maximum number of values in a file, counting the values that aliases copy. It keeps nested
/// aliases from filling the memory.
const MAX_NODES: usize = 20_000;

/// A parsed file.
pub(crate) struct YamlDocument {
    /// `None` for an empty file.
    pub(crate) root: Option<Node>,
    /// Keys that occur twice in one map, with the source of the second occurrence.
    pub(crate) duplicates: Vec<(String, SettingSource)>,
}

impl YamlDocument {
    /// Converts the document to JSON; an empty document is null.
    pub(crate) fn to_value(&self) -> Value {
        let root = self.root.as_ref();
        root.map(display::undeclared_to_value).unwrap_or_default()
    }
}

/// Maximum number of lines on which quoted text continues without indentation.
const MAX_OUTDENTED_LINES: usize = 100;

/// Parses one document; `origin` returns the source for a line.
pub(crate) fn parse(
    text: &str,
    origin: &dyn Fn(usize) -> SettingSource,
) -> Result<YamlDocument, YamlError> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_OUTDENTED_LINES {
        match parse_strictly(&text, origin) {
            // Leading blanks have no meaning where a quoted text continues, so indent the line and
            // parse again.
            Err(problem) if problem.is_outdented => {
                text = Cow::Owned(indent_line(&text, problem.line));
            }
            result => return result,
        }
    }
    parse_strictly(&text, origin)
}

/// Returns the text with one line indented by 64 blanks, deeper than any usual block around it.
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
) -> Result<YamlDocument, YamlError> {
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
pub fn parse_yaml(text: &str) -> Result<Value, YamlError> {
    parse(text, &|_| SettingSource::Default).map(|document| document.to_value())
}

/// Reads a YAML document as [`parse_yaml`] does. Fails if a map has a key twice.
pub fn parse_unique_yaml(text: &str) -> Result<Value, YamlError> {
    let file: Arc<Path> = Path::new("").into();
    let at_line = |line| SettingSource::Config {
        file: Arc::clone(&file),
        line,
    };
    let document = parse(text, &at_line)?;
    if let Some((key, SettingSource::Config { line, .. })) = document.duplicates.first() {
        return Err(YamlError {
            line: *line,
            column: 1,
            problem: format!("the key `{key}` is there twice; remove one"),
            is_outdented: false,
        });
    }
    Ok(document.to_value())
}

/// Error for text that is not valid YAML. It quotes nothing of the text, except a key that is there twice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: not valid YAML: {problem}")]
pub struct YamlError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// Problem that the parser reported.
    pub problem: String,
    /// Whether the error is a quoted text that continues on a line without indentation, which
    /// `PyYAML` allows.
    is_outdented: bool,
}

impl YamlError {
    fn new(marker: &Marker, problem: String) -> Self {
        Self {
            line: marker.line().max(1),
            column: marker.col() + 1,
            problem,
            is_outdented: false,
        }
    }

    /// Returns the error for a config file.
    pub(crate) fn in_file(self, file: &Path) -> SettingsError {
        SettingsError::Syntax {
            file: file.to_owned(),
            line: self.line,
            column: self.column,
            problem: self.problem,
        }
    }
}

struct Composer<'a, P> {
    events: P,
    origin: &'a dyn Fn(usize) -> SettingSource,
    /// Complete nodes with a YAML anchor (`&name`), by the parser's anchor id.
    anchors: Vec<(usize, Rc<Node>)>,
    duplicates: Vec<(String, SettingSource)>,
    nodes: usize,
}

type YamlEvent<'i> = (Event<'i>, Span);

impl<'i, P: Iterator<Item = Result<YamlEvent<'i>, ScanError>>> Composer<'_, P> {
    fn compose_document(&mut self) -> Result<Option<Node>, YamlError> {
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

    fn next_event(&mut self) -> Result<YamlEvent<'i>, YamlError> {
        match self.events.next() {
            Some(Ok(item)) => Ok(item),
            Some(Err(error)) => Err(YamlError {
                is_outdented: matches!(error.kind(), ErrorKind::InvalidQuotedScalarIndent),
                ..YamlError::new(error.marker(), error.info())
            }),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn compose_node(&mut self, (event, span): YamlEvent<'i>) -> Result<Node, YamlError> {
        self.count_nodes(1, &span)?;
        let origin = (self.origin)(span.start.line().max(1));
        let (anchor, data) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let (plain, tag) = (style == ScalarStyle::Plain, tag.as_deref().map(core_tag));
                let atom = scalar::scalar_atom(&text, plain, tag)
                    .ok_or_else(|| problem_at(&span, "unknown tag; put quotes around the value"))?;
                (anchor, NodeData::scalar(text, atom))
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_collection_tag(tag.as_deref(), "seq", &span)?;
                (anchor, NodeData::List(self.compose_list()?))
            }
            Event::MappingStart(_, anchor, tag) => {
                check_collection_tag(tag.as_deref(), "map", &span)?;
                (anchor, NodeData::Map(self.compose_map()?))
            }
            Event::Alias(id) => return self.resolve_alias(id, &span),
            _ => return Err(problem_at(&span, "expected a value")),
        };
        let node = data.at(origin);
        if anchor != 0 {
            self.count_nodes(node.node_count(), &span)?;
            self.anchors.push((anchor, Rc::new(node.clone())));
        }
        Ok(node)
    }

    fn compose_list(&mut self) -> Result<Vec<Node>, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next_event()? {
                (Event::SequenceEnd, _) => return Ok(items),
                item => items.push(self.compose_node(item)?),
            }
        }
    }

    fn compose_map(&mut self) -> Result<NodeMap, YamlError> {
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
                let problem = || problem_at(&span, "`<<` needs a map or a list of maps");
                merged.extend(merge_key_entries(value).ok_or_else(problem)?);
            } else if map.entries.insert(key.text.clone(), value).is_some() {
                self.duplicates
                    .push((key.text, (self.origin)(span.start.line().max(1))));
            }
        }
        for (key, value) in merged {
            map.entries.entry(key).or_insert(value);
        }
        Ok(map)
    }

    fn resolve_alias(&mut self, id: usize, span: &Span) -> Result<Node, YamlError> {
        let anchored = self.anchors.iter().find(|(anchor, _)| *anchor == id);
        let (_, node) = anchored.ok_or_else(|| {
            problem_at(
                span,
                "an alias refers to the value that contains it; remove the alias",
            )
        })?;
        // Clone only the pointer, so that the nodes are counted before they are copied.
        let node = Rc::clone(node);
        self.count_nodes(node.node_count(), span)?;
        Ok(Node::clone(&node))
    }

    fn count_nodes(&mut self, nodes: usize, span: &Span) -> Result<(), YamlError> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(problem_at(span, "more than 20000 values; shorten the file"));
        }
        Ok(())
    }
}

/// Returns the entries of the maps in the value of a merge key (`<<`), highest precedence first.
/// Returns `None` if the value contains anything else.
fn merge_key_entries(value: Node) -> Option<Vec<(String, Node)>> {
    let maps = match value.data {
        NodeData::List(items) => items.into_iter().map(|item| item.data).collect(),
        data => vec![data],
    };
    let mut entries = Vec::new();
    for data in maps {
        let NodeData::Map(map) = data else {
            return None;
        };
        entries.extend(map.entries);
    }
    Some(entries)
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

fn check_collection_tag(tag: Option<&Tag>, name: &str, span: &Span) -> Result<(), YamlError> {
    match tag.map(core_tag) {
        Some(tag) if tag != name => Err(problem_at(span, "unknown tag; remove it")),
        _ => Ok(()),
    }
}

fn problem_at(span: &Span, text: &str) -> YamlError {
    YamlError::new(&span.start, text.to_owned())
}

#[cfg(test)]
mod tests;
