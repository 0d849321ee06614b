//! The tree every source is read into, and how two sources merge.

use crate::SettingSource;

/// A value with its source. Each leaf keeps its own, so a merged map can still say where every
/// entry came from.
///
/// There is no `Debug` outside tests: a tree may hold secrets.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Node {
    pub(crate) data: NodeData,
    pub(crate) origin: SettingSource,
}

/// The shape of a value.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum NodeData {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(NodeMap),
}

/// A leaf: the text as written, and what it means where no declaration says otherwise.
///
/// Keeping both lets the declaration decide: `api_key: 0123` is the text `0123` for a text
/// setting, and `8` spelled `010` is a number only where a number is expected.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) atom: Atom,
}

/// The meaning of a scalar on its own.
#[derive(Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Atom {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

/// A map in the order it was written.
#[derive(Clone, PartialEq, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct NodeMap {
    entries: Vec<(String, Node)>,
    /// Replaces what lower sources say instead of merging into it.
    cut: bool,
}

impl Node {
    pub(crate) fn scalar(text: impl Into<String>, atom: Atom, origin: SettingSource) -> Self {
        Self {
            data: NodeData::Scalar(Scalar {
                text: text.into(),
                atom,
            }),
            origin,
        }
    }

    pub(crate) fn text(text: impl Into<String>, origin: SettingSource) -> Self {
        Self::scalar(text, Atom::Text, origin)
    }

    pub(crate) fn null(origin: SettingSource) -> Self {
        Self::scalar("", Atom::Null, origin)
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(
            &self.data,
            NodeData::Scalar(Scalar {
                atom: Atom::Null,
                ..
            })
        )
    }

    /// Follows map keys, and positions in lists, downwards.
    pub(crate) fn descend<'a>(&self, mut path: impl Iterator<Item = &'a str>) -> Option<&Self> {
        path.try_fold(self, |node, key| match &node.data {
            NodeData::Map(map) => map.get(key),
            NodeData::List(items) => items.get(key.parse::<usize>().ok()?),
            NodeData::Scalar(_) => None,
        })
    }

    /// How many nodes the tree has.
    pub(crate) fn size(&self) -> usize {
        match &self.data {
            NodeData::Scalar(_) => 1,
            NodeData::List(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            NodeData::Map(map) => 1 + map.iter().map(|(_, value)| value.size()).sum::<usize>(),
        }
    }

    /// Calls `visit` with the key above each leaf and the leaf itself.
    pub(crate) fn leaves<'a>(&'a self, key: &'a str, visit: &mut dyn FnMut(&str, &'a Scalar)) {
        match &self.data {
            NodeData::Scalar(scalar) => visit(key, scalar),
            NodeData::List(items) => items.iter().for_each(|item| item.leaves(key, visit)),
            NodeData::Map(map) => map.iter().for_each(|(key, value)| value.leaves(key, visit)),
        }
    }
}

impl NodeMap {
    /// A map that replaces what lower sources say.
    pub(crate) fn replacing(entries: Vec<(String, Node)>) -> Self {
        Self { entries, cut: true }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value)
    }

    /// Sets an entry and returns the value it replaces.
    pub(crate) fn insert(&mut self, key: String, value: Node) -> Option<Node> {
        if let Some((_, slot)) = self.entries.iter_mut().find(|(known, _)| *known == key) {
            return Some(std::mem::replace(slot, value));
        }
        self.entries.push((key, value));
        None
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    pub(crate) fn into_entries(self) -> Vec<(String, Node)> {
        self.entries
    }

    fn merge(&mut self, upper: Self) {
        for (key, value) in upper.entries {
            if let Some((_, slot)) = self.entries.iter_mut().find(|(known, _)| *known == key) {
                let lower = std::mem::replace(slot, Node::null(SettingSource::Default));
                *slot = merge(lower, value);
            } else {
                self.entries.push((key, value));
            }
        }
    }
}

/// Deep merge: maps merge key by key, everything else is replaced by `upper`.
///
/// A map that has replaced a scalar or a list is marked, so that merging it further down replaces
/// again. Without the mark the result would depend on the grouping: `{a} + 1 + {b}` would be
/// `{b}` from the left and `{a, b}` from the right.
pub(crate) fn merge(lower: Node, upper: Node) -> Node {
    let Node { data, origin } = upper;
    let data = match (lower.data, data) {
        (NodeData::Map(mut below), NodeData::Map(above)) if !above.cut => {
            below.merge(above);
            NodeData::Map(below)
        }
        (NodeData::Scalar(_) | NodeData::List(_), NodeData::Map(above)) => {
            NodeData::Map(NodeMap { cut: true, ..above })
        }
        (_, above) => above,
    };
    Node { data, origin }
}

#[cfg(test)]
#[path = "node/tests.rs"]
mod tests;
