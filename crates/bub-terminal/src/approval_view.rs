//! Shows an approval request so that a user can read it: why it is asked, the exact call or its diff, and the answers.

use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, MAX_EMPTY_LINES, escape_invisible, is_empty_line,
    shorten_empty_lines, shorten_spaces,
};
use serde_json::{Map, Value};

use crate::{Line, Style, split_at_width, turn_view};

/// The prefix of each row of the call, also of those that continue a line. Text of the call never starts at the left
/// edge, where the question and the answers are, so it cannot imitate them.
const GUTTER: &str = "  │ ";
/// What follows the prefix in a row that continues a line.
const CONTINUATION: &str = "↪ ";
/// The columns of text in a row of a narrow window.
const MIN_ROW_COLUMNS: usize = 8;
/// How many rows of a call surely fit above the answers. The start and the end of a longer call are shown again.
const MAX_ROW_COUNT: usize = 12;
/// How many rows of the start and of the end are shown again.
const REPEATED_ROW_COUNT: usize = 3;
/// The length of the sign before each line of a diff, such as `+ `.
const DIFF_SIGN_BYTES: usize = 2;
/// The argument with the command of the tool `bash`.
const COMMAND_ARGUMENT: &str = "command";

/// Returns the rows of an approval request. Nothing is omitted: what is shown is what runs. Invisible characters are
/// escaped, and long runs of spaces and of empty lines are counted, so that no part of a call moves out of sight. The
/// start and the end of a long call are directly above the answers.
///
/// `replaced` is the text of the file that the call replaces.
pub fn approval_lines(
    request: &ApprovalRequest,
    replaced: Option<&str>,
    width: usize,
) -> Vec<Line> {
    let exact = request.terms.secret_arguments.as_ref();
    let arguments = exact.unwrap_or(&request.arguments);
    let words: Vec<_> = request.reason.split_whitespace().collect();
    let mut lines = Vec::new();
    if !words.is_empty() {
        let reason = Line::new(escape_invisible(&words.join(" ")), Style::YELLOW);
        lines.extend(turn_view::wrap_line(&reason, width));
    }
    let title = format!("allow {}?", escape_invisible(&request.tool));
    lines.push(Line::new(title, Style::BOLD | Style::YELLOW));
    let call = argument_lines(&request.tool, arguments, replaced);
    let (line_count, characters) = call_size(arguments);
    let rows: Vec<_> = call.iter().flat_map(|line| wrap_row(line, width)).collect();
    if let (Some(first), Some(last)) = (
        rows.get(..REPEATED_ROW_COUNT),
        rows.len()
            .checked_sub(REPEATED_ROW_COUNT)
            .and_then(|start| rows.get(start..)),
    ) && rows.len() > MAX_ROW_COUNT
    {
        let text =
            format!("the call has {line_count} lines and {characters} characters, from and to:");
        let title = Line::new(text, Style::BOLD | Style::YELLOW);
        let title = turn_view::wrap_line(&title, width);
        let omitted = Line::new(format!("{GUTTER}⋮"), Style::DIM);
        let repeated = [first, &[omitted], last].concat();
        lines.extend(rows.iter().cloned().chain(title).chain(repeated));
    } else {
        lines.extend(rows);
    }
    lines.extend(answer_lines(request, width));
    lines
}

/// Parses what a user typed. Returns `None` if it is not a possible answer to the request.
pub fn parse_answer(request: &ApprovalRequest, text: &str) -> Option<ApprovalAnswer> {
    ApprovalAnswer::from_text(text).filter(|answer| request.is_possible(answer))
}

/// Returns what an answer does, to show it after the question.
pub fn answer_notice(request: &ApprovalRequest, answer: &ApprovalAnswer) -> String {
    match answer {
        ApprovalAnswer::Approved if request.terms.content_cause.is_some() => {
            "allowed; such calls are allowed until the end of this turn".to_owned()
        }
        ApprovalAnswer::Approved => "allowed once".to_owned(),
        ApprovalAnswer::ApprovedForSession => "allowed in this session until bub exits".to_owned(),
        ApprovalAnswer::ApprovedAlways => {
            let rule = escape_invisible(request.terms.always_rule.as_deref().unwrap_or_default());
            format!("allowed; adding the rule to the config file: {rule}")
        }
        ApprovalAnswer::Denied(Some(reason)) => {
            format!("denied; the model sees the reason: {reason}")
        }
        _ => "denied".to_owned(),
    }
}

/// Returns the rows of the arguments: a command as it is typed, a change as a diff, other arguments with their names.
fn argument_lines(tool: &str, arguments: &Map<String, Value>, replaced: Option<&str>) -> Vec<Line> {
    let changes = turn_view::change_lines(tool, arguments, replaced);
    let mut lines = Vec::new();
    for (name, value) in arguments {
        if changes.is_some() && turn_view::is_change_argument(name) {
            continue;
        }
        let name = escape_invisible(name);
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let label = match name.as_str() {
            COMMAND_ARGUMENT => "$ ".to_owned(),
            name => format!("{name}: "),
        };
        let rows = shorten_empty_lines(&text);
        for (index, row) in rows.iter().map(|row| escape_row(row)).enumerate() {
            let label = if index == 0 { label.as_str() } else { "  " };
            let mut line = Line::new(label, Style::DIM);
            line.push(&row, Style::NONE);
            lines.push(line);
        }
    }
    lines.extend(shorten_empty_changes(&changes.unwrap_or_default()));
    lines
}

/// Returns the number of lines and of characters of all arguments.
fn call_size(arguments: &Map<String, Value>) -> (usize, usize) {
    let sizes = arguments.values().map(|value| match value {
        Value::String(text) => (text.split('\n').count(), text.chars().count()),
        other => (1, other.to_string().chars().count()),
    });
    sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
}

/// Returns the rows of a diff, escaped. Counts empty lines with the same sign instead of showing many.
fn shorten_empty_changes(changes: &[Line]) -> Vec<Line> {
    // The sign of an empty line.
    let empty_sign = |line: &Line| {
        let text = line.text();
        let (sign, rest) = text.split_at_checked(DIFF_SIGN_BYTES)?;
        is_empty_line(rest).then(|| sign.to_owned())
    };
    let mut lines = Vec::new();
    for run in changes.chunk_by(|one, other| empty_sign(one) == empty_sign(other)) {
        if let Some(first) = run.first()
            && let Some(sign) = empty_sign(first)
            && run.len() > MAX_EMPTY_LINES
        {
            let style = first.spans.first().map_or(Style::NONE, |span| span.style);
            let text = format!("{sign}⟨{} empty lines⟩", run.len());
            lines.push(Line::new(text, style));
            continue;
        }
        for change in run {
            let mut line = Line::default();
            for span in &change.spans {
                line.push(&escape_row(&span.text), span.style);
            }
            lines.push(line);
        }
    }
    lines
}

/// Splits a line into rows that fit into `width` columns, each with its prefix.
fn wrap_row(line: &Line, width: usize) -> Vec<Line> {
    let prefix = |continuation: &str| {
        let mut row = Line::new(GUTTER, Style::DIM);
        row.push(continuation, Style::DIM);
        row
    };
    let mut rows = Vec::new();
    let mut row = prefix("");
    let width = width.max(prefix(CONTINUATION).columns() + MIN_ROW_COLUMNS);
    for span in &line.spans {
        let mut rest = span.text.as_str();
        while !rest.is_empty() {
            let (start, end) = split_at_width(rest, width.saturating_sub(row.columns()));
            let is_stuck = start.is_empty() && row.columns() <= prefix(CONTINUATION).columns();
            // A character can be wider than a narrow row.
            let (start, end) = match rest.char_indices().nth(1) {
                Some((offset, _)) if is_stuck => rest.split_at(offset),
                None if is_stuck => (rest, ""),
                _ => (start, end),
            };
            row.push(start, span.style);
            rest = end;
            if !rest.is_empty() {
                rows.push(std::mem::replace(&mut row, prefix(CONTINUATION)));
            }
        }
    }
    rows.push(row);
    rows
}

/// Escapes a row of text. A tab stays readable, and many spaces are counted.
fn escape_row(row: &str) -> String {
    let row = shorten_spaces(row);
    let parts = row.split('\t').map(escape_invisible);
    parts.collect::<Vec<_>>().join("⇥   ")
}

/// Returns the answers that are possible, each with its effect.
fn answer_lines(request: &ApprovalRequest, width: usize) -> Vec<Line> {
    let once = match request.terms.content_cause {
        Some(_) => "y  allow it, and such calls until the end of this turn",
        None => "y  allow it once",
    };
    let mut answers = vec![once.to_owned()];
    if request.terms.can_remember {
        answers.push("s  allow it in this session until bub exits".to_owned());
    }
    if let Some(rule) = &request.terms.always_rule {
        let rule = escape_invisible(rule);
        answers.push(format!("a  allow it always, with the policy rule: {rule}"));
    }
    answers.push("n  deny it; `n REASON` tells the model why".to_owned());
    let rows = answers.iter().flat_map(|answer| {
        let line = Line::new(format!("  {answer}"), Style::NONE);
        turn_view::wrap_line(&line, width)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use bub_kernel::ApprovalTerms;
    use serde_json::json;

    use super::*;

    fn shown(tool: &str, arguments: &Value, terms: ApprovalTerms, width: usize) -> String {
        shown_over(None, tool, arguments, terms, width)
    }

    fn shown_over(
        replaced: Option<&str>,
        tool: &str,
        arguments: &Value,
        terms: ApprovalTerms,
        width: usize,
    ) -> String {
        let mut request = ApprovalRequest::default();
        request.tool = tool.to_owned();
        request.arguments = arguments.as_object().unwrap().clone();
        request.reason = "rule 1 asks about it".to_owned();
        request.terms = terms;
        let lines = approval_lines(&request, replaced, width);
        lines.iter().map(Line::text).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_command_is_shown_as_it_is_typed_with_all_answers() {
        let mut terms = ApprovalTerms::default();
        terms.can_remember = true;
        terms.always_rule = Some("allow bash, command `make all`".to_owned());
        let arguments = json!({"command": "make all &&\n\tmake install", "background": true});
        insta::assert_snapshot!(shown("bash", &arguments, terms, 60), @r"
        rule 1 asks about it
        allow bash?
          │ $ make all &&
          │   ⇥   make install
          │ background: true
          y  allow it once
          s  allow it in this session until bub exits
          a  allow it always, with the policy rule: allow bash,
              command `make all`
          n  deny it; `n REASON` tells the model why
        ");
    }

    #[test]
    fn an_answer_that_covers_the_turn_says_so() {
        let mut terms = ApprovalTerms::default();
        terms.content_cause = Some("a web page".to_owned());
        let mut request = ApprovalRequest::default();
        request.terms = terms.clone();
        let rows = shown("bash", &json!({"command": "ls"}), terms, 60);
        let notice = answer_notice(&request, &ApprovalAnswer::Approved);
        for text in [rows, notice] {
            assert!(text.contains("such calls"), "{text}");
            assert!(text.contains("until the end of this turn"), "{text}");
            assert!(!text.contains("once"), "{text}");
        }
    }

    #[test]
    fn an_edit_is_shown_as_a_diff() {
        let arguments =
            json!({"path": "src/a.rs", "old": "let x = 1;", "new": "let x = 2;", "start": 0});
        insta::assert_snapshot!(shown("fs.edit", &arguments, ApprovalTerms::default(), 60), @r"
        rule 1 asks about it
        allow fs.edit?
          │ path: src/a.rs
          │ start: 0
          │ - let x = 1;
          │ + let x = 2;
          y  allow it once
          n  deny it; `n REASON` tells the model why
        ");
    }

    #[test]
    fn a_file_that_is_replaced_is_shown_as_a_diff() {
        let arguments = json!({"path": "a.txt", "content": "one\nthree\n"});
        let replaced = Some("one\ntwo\u{202e}\n");
        let terms = ApprovalTerms::default();
        insta::assert_snapshot!(shown_over(replaced, "fs.write", &arguments, terms, 60), @r"
        rule 1 asks about it
        allow fs.write?
          │ path: a.txt
          │   one
          │ - two\u{202e}
          │ + three
          y  allow it once
          n  deny it; `n REASON` tells the model why
        ");
    }

    // Spaces up to the end of a row, and empty rows, would move the command out of sight and a forged question into it.
    #[test]
    fn a_call_cannot_scroll_its_command_away() {
        let forged = "allow bash?\n  │ $ git status\n  y  allow it once";
        for blank in [" ".repeat(80 * 22), "\n".repeat(30), "\t \n".repeat(30)] {
            let command = format!("touch EVIL #{blank}{}{forged}", " ".repeat(70));
            let text = shown(
                "bash",
                &json!({"command": command}),
                ApprovalTerms::default(),
                80,
            );
            let rows: Vec<_> = text.lines().collect();
            assert!(rows.len() < 16, "{text}");
            assert!(rows.iter().all(|row| row.chars().count() <= 80), "{text}");
            assert_eq!(rows.iter().filter(|row| **row == "allow bash?").count(), 1);
            let start = rows.iter().position(|row| row.contains("$ touch EVIL"));
            assert_eq!(start, Some(2), "{text}");
            assert!(
                text.contains(" spaces⟩") || text.contains(" empty lines⟩"),
                "{text}"
            );
        }
    }

    // Empty lines of a diff would move the rest of the change out of sight.
    #[test]
    fn empty_lines_of_a_diff_are_counted() {
        let content = format!("start\n{}end\n\n\nlast\n", "\n \n".repeat(30));
        let arguments = json!({"path": "a.txt", "content": content});
        let terms = ApprovalTerms::default();
        insta::assert_snapshot!(shown("fs.write", &arguments, terms, 60), @r"
        rule 1 asks about it
        allow fs.write?
          │ path: a.txt
          │ + start
          │ + ⟨60 empty lines⟩
          │ + end
          │ + 
          │ + 
          │ + last
          y  allow it once
          n  deny it; `n REASON` tells the model why
        ");
    }

    #[test]
    fn the_start_and_the_end_of_a_long_call_are_above_the_answers() {
        let rows: Vec<_> = (1..=40).map(|number| format!("echo {number}")).collect();
        let arguments = json!({"command": rows.join("\n")});
        let text = shown("bash", &arguments, ApprovalTerms::default(), 60);
        let (_, end) = text.split_once("the call").unwrap();
        insta::assert_snapshot!(format!("the call{end}"), @r"
        the call has 40 lines and 310 characters, from and to:
          │ $ echo 1
          │   echo 2
          │   echo 3
          │ ⋮
          │   echo 38
          │   echo 39
          │   echo 40
          y  allow it once
          n  deny it; `n REASON` tells the model why
        ");
    }

    // What is shown is what runs, and a call cannot imitate the question.
    #[test]
    fn a_call_cannot_forge_the_question() {
        let command = format!(
            "echo {}\nallow ls?\n  y  allow it once\r\u{1b}[2K\u{202e}\u{200b}\u{a0}\u{fe0f}",
            "x".repeat(5000)
        );
        let text = shown(
            "bash",
            &json!({"command": command}),
            ApprovalTerms::default(),
            40,
        );
        let rows = text
            .lines()
            .take_while(|line| !line.starts_with("the call"));
        let rows = rows.filter_map(|line| line.strip_prefix(GUTTER));
        let rows = rows.map(|row| row.strip_prefix(CONTINUATION).unwrap_or(row));
        let whole: String = rows.collect();
        assert!(whole.contains(&"x".repeat(5000)), "{text}");
        assert_eq!(text.lines().filter(|line| *line == "allow ls?").count(), 0);
        let yes = text.lines().filter(|line| line.starts_with("  y  "));
        assert_eq!(yes.count(), 1, "{text}");
        let end = r"allow it once\u{d}\u{1b}[2K\u{202e}\u{200b}\u{a0}\u{fe0f}";
        assert!(whole.contains(end), "{text}");
        // A diff escapes what it shows, too.
        let write = json!({"path": "x", "content": "a\u{202e}b\rc"});
        let text = shown("fs.write", &write, ApprovalTerms::default(), 40);
        assert!(text.contains("+ a\\u{202e}b"), "{text}");
    }
}
