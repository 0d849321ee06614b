//! Finds known texts while the text arrives (Aho-Corasick).
//!
//! The crate `aho-corasick` does not show the depth of a state, which says how much of a text may
//! be the beginning of a secret. Its tables also grow faster than the secrets if many secrets end
//! alike.

use std::collections::BTreeSet;
use std::ops::Range;

/// Number of a node. The root has number 0.
type NodeId = u32;

/// An automaton whose states are the prefixes of all patterns. Time and memory are linear in the
/// length of the patterns, and a scan is linear in the length of the text.
pub(super) struct Automaton {
    nodes: Vec<Node>,
    /// Child of the root for each byte; the root itself where it has none.
    root: Box<[NodeId; 256]>,
}

#[derive(Clone, Copy, Default)]
struct Node {
    first_child: NodeId,
    child_count: u16,
    /// Last byte of the prefix.
    byte: u8,
    /// Node of the longest proper suffix that is a prefix of a pattern, too.
    suffix: NodeId,
    /// Length of the prefix.
    depth: u32,
    /// Length of the longest pattern that the prefix ends with, or 0.
    match_bytes: u32,
}

/// A position in a text: which prefix of a pattern precedes it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AutomatonState(NodeId);

impl Automaton {
    pub(super) fn new(patterns: &BTreeSet<Vec<u8>>) -> Self {
        let patterns: Vec<&[u8]> = patterns.iter().map(Vec::as_slice).collect();
        let mut automaton = Self {
            nodes: vec![Node::default()],
            root: Box::new([0; 256]),
        };
        // The patterns are sorted, so those with a common prefix are a range.
        let mut ranges = Vec::from_iter([Range {
            start: 0,
            end: patterns.len(),
        }]);
        let mut id = 0;
        while let Some(range) = ranges.get(id).cloned() {
            automaton.add_children(id, &patterns, range, &mut ranges);
            id += 1;
        }
        automaton
    }

    /// Adds the children of a node. `range` has the patterns that start with the prefix of the node.
    fn add_children(
        &mut self,
        id: usize,
        patterns: &[&[u8]],
        range: Range<usize>,
        ranges: &mut Vec<Range<usize>>,
    ) {
        let parent = self.nodes.get(id).copied().unwrap_or_default();
        let next_byte = |pattern: &[u8]| pattern.get(parent.depth as usize).copied();
        let first_child = self.nodes.len();
        let mut rest = range;
        while let Some(pattern) = patterns.get(rest.start).filter(|_| !rest.is_empty()) {
            let byte = next_byte(pattern);
            let same = patterns.get(rest.clone()).unwrap_or_default();
            let end = rest.start + same.partition_point(|other| next_byte(other) == byte);
            let group = rest.start..end;
            rest.start = end;
            // A pattern that ends at this node has no next byte.
            let Some(byte) = byte else { continue };
            let suffix = match id {
                0 => AutomatonState::default(),
                _ => self.step(AutomatonState(parent.suffix), byte),
            };
            let depth = parent.depth + 1;
            let match_bytes = if pattern.len() == depth as usize {
                depth
            } else {
                self.node(suffix).match_bytes
            };
            if let Some(child) = self.root.get_mut(usize::from(byte)).filter(|_| id == 0) {
                *child = to_id(self.nodes.len());
            }
            self.nodes.push(Node {
                byte,
                suffix: suffix.0,
                depth,
                match_bytes,
                ..Node::default()
            });
            ranges.push(group);
        }
        let child_count = self.nodes.len() - first_child;
        if let Some(node) = self.nodes.get_mut(id) {
            node.first_child = to_id(first_child);
            node.child_count = u16::try_from(child_count).unwrap_or(u16::MAX);
        }
    }

    /// Returns the state after one more byte.
    pub(super) fn step(&self, state: AutomatonState, byte: u8) -> AutomatonState {
        let AutomatonState(mut id) = state;
        loop {
            #[cfg(test)]
            STEPS.set(STEPS.get() + 1);
            if id == 0 {
                let child = self.root.get(usize::from(byte));
                return AutomatonState(child.copied().unwrap_or_default());
            }
            let node = self.node(AutomatonState(id));
            let first = node.first_child as usize;
            let children = self.nodes.get(first..first + usize::from(node.child_count));
            let children = children.unwrap_or_default();
            if let Ok(index) = children.binary_search_by_key(&byte, |child| child.byte) {
                return AutomatonState(to_id(first + index));
            }
            id = node.suffix;
        }
    }

    /// Returns the length of the longest pattern that ends at a state, or 0.
    pub(super) fn match_bytes(&self, state: AutomatonState) -> usize {
        self.node(state).match_bytes as usize
    }

    /// Returns how many bytes before a state may be the beginning of a pattern.
    pub(super) fn partial_bytes(&self, state: AutomatonState) -> usize {
        self.node(state).depth as usize
    }

    fn node(&self, AutomatonState(id): AutomatonState) -> Node {
        self.nodes.get(id as usize).copied().unwrap_or_default()
    }
}

/// Converts an index. There are fewer nodes than bytes of patterns, far below the limit.
fn to_id(index: usize) -> NodeId {
    NodeId::try_from(index).unwrap_or_default()
}

#[cfg(test)]
thread_local! {
    /// Number of nodes that this thread has visited, to count the work of a scan.
    pub(super) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
