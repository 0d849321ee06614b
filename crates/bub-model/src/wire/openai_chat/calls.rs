//! Finds the tool call that each delta of a stream belongs to.
//!
//! The index in a delta should identify the call. But some servers omit the index, send 0 for all calls, repeat name
//! and id with every delta, or send a new id with each delta.

use crate::{ModelError, Result};

/// The tool calls of an answer that have been received so far.
#[derive(Clone, Debug, Default)]
pub(super) struct CallAssembler {
    calls: Vec<AssembledCall>,
}

/// A tool call that has been received in part.
#[derive(Clone, Debug, Default)]
struct AssembledCall {
    wire_index: Option<u64>,
    id: String,
    has_name: bool,
    arguments: ArgumentScanner,
}

/// The part of a tool call in one delta, as received.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallDelta<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) arguments: &'a str,
}

/// Maximum number of calls in an answer. Models make far fewer; the limit stops faulty servers.
const MAX_TOOL_CALLS: usize = 1024;

impl CallAssembler {
    /// Returns the position of the call that a delta belongs to. Adds a call if necessary.
    pub(super) fn assign_delta(&mut self, delta: CallDelta<'_>) -> Result<usize> {
        let position = match self.find_call(delta) {
            Some(position) => position,
            None if self.calls.len() >= MAX_TOOL_CALLS => {
                return Err(ModelError::malformed(format!(
                    "unexpected answer: it has more than {MAX_TOOL_CALLS} tool calls; use another model"
                )));
            }
            None => {
                self.calls.push(AssembledCall {
                    wire_index: delta.index,
                    ..AssembledCall::default()
                });
                self.calls.len() - 1
            }
        };
        if let Some(call) = self.calls.get_mut(position) {
            call.has_name |= !delta.name.is_empty();
            call.arguments.scan_text(delta.arguments);
            if !delta.id.is_empty() {
                delta.id.clone_into(&mut call.id);
            }
        }
        Ok(position)
    }

    fn find_call(&self, delta: CallDelta<'_>) -> Option<usize> {
        let last_where = |test: &dyn Fn(&AssembledCall) -> bool| self.calls.iter().rposition(test);
        let position = match delta.index {
            Some(index) => last_where(&|call| call.wire_index == Some(index))?,
            None if delta.id.is_empty() => self.calls.len().checked_sub(1)?,
            None => last_where(&|call| call.id == delta.id).or_else(|| {
                self.calls
                    .len()
                    .checked_sub(1)
                    .filter(|_| delta.name.is_empty())
            })?,
        };
        self.calls
            .get(position)
            .filter(|call| !call.starts_new_call(delta))
            .map(|_| position)
    }
}

impl AssembledCall {
    /// Returns whether a delta with the index or id of this call is actually the start of another call.
    fn starts_new_call(&self, delta: CallDelta<'_>) -> bool {
        if !self.has_name || delta.name.is_empty() {
            return false;
        }
        if delta.id.is_empty() {
            return delta.index.is_none() && self.arguments.is_complete();
        }
        delta.id != self.id && !self.id.is_empty() && !self.arguments.is_open()
    }
}

/// Detects whether arguments are complete by counting brackets outside of strings. So the arguments need not be parsed
/// again with every delta.
#[derive(Clone, Debug, Default)]
struct ArgumentScanner {
    depth: usize,
    has_started: bool,
    in_string: bool,
    escaped: bool,
}

impl ArgumentScanner {
    fn scan_text(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.has_started = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Returns whether the outermost object or list of the arguments has started and ended.
    fn is_complete(&self) -> bool {
        self.has_started && self.depth == 0 && !self.in_string
    }

    /// Returns whether the outermost object or list of the arguments has started and not ended.
    fn is_open(&self) -> bool {
        self.has_started && !self.is_complete()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned_positions(deltas: &[(Option<u64>, &str, &str, &str)]) -> Vec<usize> {
        let mut calls = CallAssembler::default();
        let delta = |&(index, id, name, arguments)| CallDelta {
            index,
            id,
            name,
            arguments,
        };
        deltas
            .iter()
            .map(|row| calls.assign_delta(delta(row)).unwrap())
            .collect()
    }

    #[test]
    fn pieces_find_their_call() {
        // H-85: deltas with the same index belong to one call.
        let by_index = [
            (Some(0), "a", "f", ""),
            (Some(1), "b", "g", ""),
            (Some(0), "", "", "{}"),
        ];
        assert_eq!(assigned_positions(&by_index), [0, 1, 0]);
        let gaps = [
            (Some(7), "a", "f", "{}"),
            (Some(900), "b", "g", "{}"),
            (Some(7), "", "", ""),
        ];
        assert_eq!(assigned_positions(&gaps), [0, 1, 0]);
        let no_index = [
            (None, "a", "f", "{"),
            (None, "", "", "}"),
            (None, "b", "g", "{}"),
        ];
        assert_eq!(assigned_positions(&no_index), [0, 0, 1]);
        let neither_index_nor_id = [
            (None, "", "f", "{}"),
            (None, "", "g", "{}"),
            (None, "", "g", "{}"),
        ];
        assert_eq!(assigned_positions(&neither_index_nor_id), [0, 1, 2]);
        let all_zero = [
            (Some(0), "a", "f", "{}"),
            (Some(0), "b", "f", "{}"),
            (Some(0), "b", "f", ""),
        ];
        assert_eq!(assigned_positions(&all_zero), [0, 1, 1]);
        let repeated = [(Some(0), "a", "f", "{\"x\":"), (Some(0), "a", "f", "1}")];
        assert_eq!(assigned_positions(&repeated), [0, 0]);
        let new_id_each_time = [(Some(0), "a", "f", "{\"x\":"), (Some(0), "b", "f", "1}")];
        assert_eq!(assigned_positions(&new_id_each_time), [0, 0]);
        let id_each_time_without_name = [(None, "a", "f", "{"), (None, "b", "", "}")];
        assert_eq!(assigned_positions(&id_each_time_without_name), [0, 0]);
        let name_in_pieces = [(Some(0), "a", "get_", ""), (Some(0), "", "weather", "{}")];
        assert_eq!(assigned_positions(&name_in_pieces), [0, 0]);
        let brackets_in_strings = [(None, "", "f", "{\"a\":\"}\\\"}\""), (None, "", "f", "}")];
        assert_eq!(assigned_positions(&brackets_in_strings), [0, 0]);
    }

    #[test]
    fn a_flood_of_calls_is_refused() {
        let mut calls = CallAssembler::default();
        let delta = |index| CallDelta {
            index: Some(index),
            id: "",
            name: "f",
            arguments: "",
        };
        let result = (0..5000).try_for_each(|index| calls.assign_delta(delta(index)).map(|_| ()));
        assert!(result.is_err());
    }
}
