//! The tree that every source is read into, and the merge of two sources.

use crate::SettingSource;

/// A value with its source. Each leaf keeps its own source, so the source of every entry of a
/// merged map is known.
///
/// `Debug` exists only in tests, because a tree may hold secrets.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Node {
    pub(crate) data: NodeData,
    pub(crate) origin: SettingSource,
}

/// Kind and content of a value.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum NodeData {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(NodeMap),
}

/// A leaf: the text as written, and its meaning without a declaration.
///
/// Keeping both lets the declaration decide: `api_key: 0123` is the text `0123` for a text setting,
/// and `010` is the number 8 only where a number is expected.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) atom: Atom,
}

/// Meaning of a scalar without a declaration.
#[derive(Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Atom {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text,
}

/// A map in the order of its source.
#[derive(Clone, PartialEq, Default)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct NodeMap {
    entries: Vec<(String, Node)>,
    /// Whether the map replaces values with lower precedence instead of merging with them.
    replaces_lower: bool,
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

    /// Follows map keys and list indexes downwards.
    pub(crate) fn descend<'a>(&self, mut path: impl Iterator<Item = &'a str>) -> Option<&Self> {
        path.try_fold(self, |node, key| match &node.data {
            NodeData::Map(map) => map.get(key),
            NodeData::List(items) => items.get(key.parse::<usize>().ok()?),
            NodeData::Scalar(_) => None,
        })
    }

    /// Returns the number of nodes in the tree.
    pub(crate) fn node_count(&self) -> usize {
        match &self.data {
            NodeData::Scalar(_) => 1,
            NodeData::List(items) => 1 + items.iter().map(Self::node_count).sum::<usize>(),
            NodeData::Map(map) => {
                1 + map
                    .iter()
                    .map(|(_, value)| value.node_count())
                    .sum::<usize>()
            }
        }
    }

    /// Calls `visit` with the key above each leaf and the leaf itself.
    pub(crate) fn visit_leaves<'a>(
        &'a self,
        key: &'a str,
        visit: &mut dyn FnMut(&str, &'a Scalar),
    ) {
        match &self.data {
            NodeData::Scalar(scalar) => visit(key, scalar),
            NodeData::List(items) => items.iter().for_each(|item| item.visit_leaves(key, visit)),
            NodeData::Map(map) => map
                .iter()
                .for_each(|(key, value)| value.visit_leaves(key, visit)),
        }
    }
}

impl NodeMap {
    /// Creates a map that replaces values with lower precedence.
    pub(crate) fn new_replacing(entries: Vec<(String, Node)>) -> Self {
        Self {
            entries,
            replaces_lower: true,
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    /// Sets an entry and returns the value it replaces.
    pub(crate) fn insert(&mut self, key: String, value: Node) -> Option<Node> {
        if let Some((_, slot)) = self.entries.iter_mut().find(|(name, _)| *name == key) {
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
            if let Some((_, slot)) = self.entries.iter_mut().find(|(name, _)| *name == key) {
                let lower = std::mem::replace(slot, Node::null(SettingSource::Default));
                *slot = merge(lower, value);
            } else {
                self.entries.push((key, value));
            }
        }
    }
}

/// Merges two trees: maps merge key by key, other values are replaced by `upper`.
///
/// A map that has replaced a scalar or a list is marked, so that a later merge with a lower tree
/// replaces again. Otherwise the result would depend on the grouping: `{a} + 1 + {b}` would be
/// `{b}` from the left and `{a, b}` from the right.
pub(crate) fn merge(lower: Node, upper: Node) -> Node {
    let Node { data, origin } = upper;
    let data = match (lower.data, data) {
        (NodeData::Map(mut below), NodeData::Map(above)) if !above.replaces_lower => {
            below.merge(above);
            NodeData::Map(below)
        }
        (NodeData::Scalar(_) | NodeData::List(_), NodeData::Map(above)) => NodeData::Map(NodeMap {
            replaces_lower: true,
            ..above
        }),
        (_, above) => above,
    };
    Node { data, origin }
}

#[cfg(test)]
#[path = "node/tests.rs"]
mod tests;
