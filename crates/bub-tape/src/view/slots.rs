//! The slots of a handoff: what the next phase needs to know, under fixed keys of the anchor's state.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::EntryId;

/// Headings of the lists that the model writes, in the order in which the model sees them.
const LIST_HEADINGS: [&str; 5] = ["Decisions", "Done", "In progress", "Next", "Open questions"];
/// Headings of slots that bub fills from the tape. What the model writes under them is ignored.
const TAPE_HEADINGS: [&str; 2] = ["Latest instruction", "Files"];
const GOAL_HEADING: &str = "Goal";
/// Answers of a model that has nothing to write under a heading.
const EMPTY_ITEMS: [&str; 4] = ["none", "n/a", "-", "(none)"];

/// The slots of a handoff. They are keys of the anchor's state; a state that lacks one of them has no slots.
///
/// The model writes the goal and the lists. bub fills `latest_instruction`, `files` and `source` from the tape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffSlots {
    /// What the user wants to achieve.
    pub goal: String,
    /// The latest message of the user: all of it, or its beginning and end.
    pub latest_instruction: String,
    /// What was decided, with reasons.
    pub decisions: Vec<String>,
    /// What is done.
    pub done: Vec<String>,
    /// What was begun and is not done.
    pub in_progress: Vec<String>,
    /// What comes next.
    pub next: Vec<String>,
    /// The files that tools used, oldest first.
    pub files: Vec<String>,
    /// Questions without an answer.
    pub open_questions: Vec<String>,
    /// The entries that the slots sum up.
    pub source: HandoffSource,
}

/// The entries that the slots of a handoff sum up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoffSource {
    /// The first entry.
    pub first: EntryId,
    /// The last entry.
    pub last: EntryId,
    /// The entry with the latest instruction.
    pub instruction: Option<EntryId>,
}

impl HandoffSlots {
    /// The keys of the slots in an anchor's state.
    pub(super) const KEYS: [&str; 9] = [
        "goal",
        "latest_instruction",
        "decisions",
        "done",
        "in_progress",
        "next",
        "files",
        "open_questions",
        "source",
    ];

    /// Reads the slots from the state of an anchor. Returns `None` if a slot is missing.
    pub fn from_state(state: &Value) -> Option<Self> {
        Self::deserialize(state).ok()
    }

    /// Reads the goal and the lists from a text of the model with lines such as `Goal: …` and `Done:`. Also accepts
    /// Markdown headings and lists. Returns the slots and the text before the first heading.
    pub fn parse(text: &str) -> (Self, String) {
        let (mut slots, mut other, mut heading) = (Self::default(), Vec::new(), None);
        for line in text.lines().flat_map(split_headings) {
            let content = match heading_of(line) {
                Some((found, content)) => {
                    heading = Some(found);
                    content
                }
                None => line,
            };
            match heading {
                None => other.push(line),
                Some(GOAL_HEADING) => join(&mut slots.goal, content.trim()),
                Some(heading) => {
                    if let Some(list) = slots.list_mut(heading) {
                        add_item(list, content);
                    }
                }
            }
        }
        (slots, other.join("\n").trim().to_owned())
    }

    /// Replaces the goal and the lists by those of `other` that are not empty.
    pub fn merge(&mut self, mut other: Self) {
        if !other.goal.is_empty() {
            self.goal = std::mem::take(&mut other.goal);
        }
        for heading in LIST_HEADINGS {
            if let (Some(list), Some(new)) = (self.list_mut(heading), other.list_mut(heading))
                && !new.is_empty()
            {
                *list = std::mem::take(new);
            }
        }
    }

    /// Returns the lists, those first that can be shortened first.
    pub fn lists_mut(&mut self) -> [&mut Vec<String>; 6] {
        [
            &mut self.done,
            &mut self.files,
            &mut self.next,
            &mut self.in_progress,
            &mut self.open_questions,
            &mut self.decisions,
        ]
    }

    /// Returns the slots as the model sees them, one line per item.
    pub fn to_text(&self, with_instruction: bool) -> String {
        let (mut slots, mut lines) = (self.clone(), Vec::new());
        if !self.goal.is_empty() {
            lines.push(format!("{GOAL_HEADING}: {}", self.goal));
        }
        for heading in LIST_HEADINGS {
            let items = slots.list_mut(heading).map(std::mem::take);
            let items = items.filter(|items| !items.is_empty());
            lines.extend(items.map(|items| format!("{heading}:\n- {}", items.join("\n- "))));
        }
        let [instruction, files] = TAPE_HEADINGS;
        if !self.files.is_empty() {
            lines.push(format!("{files}: {}", self.files.join(", ")));
        }
        if with_instruction && !self.latest_instruction.is_empty() {
            lines.push(format!("{instruction}:\n{}", self.latest_instruction));
        }
        lines.join("\n")
    }

    /// Returns the sentence that tells the model what it can look up, and how.
    pub fn lookup_hint(&self) -> String {
        let HandoffSource { first, last, .. } = self.source;
        format!(
            "[Entries {first} to {last} are not shown; tape_search finds what they say, tape_read shows an entry by its id.]"
        )
    }

    fn list_mut(&mut self, heading: &str) -> Option<&mut Vec<String>> {
        match heading {
            "Decisions" => Some(&mut self.decisions),
            "Done" => Some(&mut self.done),
            "In progress" => Some(&mut self.in_progress),
            "Next" => Some(&mut self.next),
            "Open questions" => Some(&mut self.open_questions),
            _ => None,
        }
    }
}

/// Splits a line before each heading that follows a sentence, such as in `Goal: a boat. Next: the mast`.
fn split_headings(line: &str) -> Vec<&str> {
    let is_heading = |&index: &usize| {
        let (before, rest) = line.split_at(index);
        let name = rest.split([':', '：']).next().unwrap_or_default();
        let name = Some(name).filter(|name| name.len() < rest.len());
        before.trim_end().ends_with(['.', ';', '。', '；'])
            && name.is_some_and(|name| find_heading(name).is_some_and(|heading| heading == name))
    };
    let indexes = line.char_indices().map(|(index, _)| index);
    let (mut parts, mut rest, mut start) = (Vec::new(), line, 0);
    for index in indexes.filter(is_heading) {
        let (part, later) = rest.split_at(index - start);
        parts.push(part);
        (rest, start) = (later, index);
    }
    parts.push(rest);
    parts
}

/// Returns the heading with this name, in any case.
fn find_heading(name: &str) -> Option<&'static str> {
    let mut all = LIST_HEADINGS
        .into_iter()
        .chain(TAPE_HEADINGS)
        .chain([GOAL_HEADING]);
    all.find(|heading| heading.eq_ignore_ascii_case(name))
}

/// Returns the heading that a line starts with, and the rest of the line. Ignores Markdown around the heading.
fn heading_of(line: &str) -> Option<(&'static str, &str)> {
    let is_markup = |letter: char| matches!(letter, '#' | '*' | '_' | '`' | ' ' | '\t');
    let line = line.trim();
    let is_markdown = line.starts_with('#') || line.starts_with("**") && line.ends_with("**");
    let (name, rest) = match line.split_once([':', '：']) {
        Some(parts) => parts,
        None if is_markdown => (line, ""),
        None => return None,
    };
    let name = name.trim_start_matches(|letter: char| {
        is_markup(letter) || matches!(letter, '-' | '.' | ')') || letter.is_ascii_digit()
    });
    let heading = find_heading(name.trim_end_matches(is_markup))?;
    Some((heading, rest.trim_start_matches(is_markup)))
}

/// Adds a line of a list: a new item, or the rest of the last one if the line is indented.
fn add_item(list: &mut Vec<String>, line: &str) {
    let text = line.trim();
    let item = text.trim_start_matches(['-', '*', '•', '+']).trim_start();
    let is_empty = |empty: &str| empty.eq_ignore_ascii_case(item.trim_end_matches('.'));
    if item.is_empty() || EMPTY_ITEMS.into_iter().any(is_empty) {
        return;
    }
    match list.last_mut() {
        Some(before) if item.len() == text.len() && line.starts_with([' ', '\t']) => {
            join(before, item);
        }
        _ => list.push(item.to_owned()),
    }
}

/// Appends a part of a text in the same line.
fn join(text: &mut String, part: &str) {
    if !text.is_empty() && !part.is_empty() {
        text.push(' ');
    }
    text.push_str(part);
}
