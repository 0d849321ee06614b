//! Shows an approval request so that a user can read it: why it is asked, the exact call or its diff, and the answers.

use bub_kernel::{ApprovalRequest, escape_invisible};
use serde_json::{Map, Value};

use crate::{Line, Style, turn_view};

/// The prefix of each row of the call. Text of the call never starts at the left edge, where the question and the
/// answers are, so it cannot imitate them.
const GUTTER: &str = "  │ ";
/// The argument with the command of the tool `bash`.
const COMMAND_ARGUMENT: &str = "command";

/// Returns the rows of an approval request. Nothing is omitted, and invisible characters are escaped: what is shown is
/// what runs.
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
    lines.extend(argument_lines(&request.tool, arguments, replaced));
    lines.extend(answer_lines(request, width));
    lines
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
        for (index, row) in text.split('\n').enumerate() {
            let label = if index == 0 { label.as_str() } else { "  " };
            let mut line = Line::new(GUTTER, Style::DIM);
            line.push(label, Style::DIM);
            line.push(&escape_row(row), Style::NONE);
            lines.push(line);
        }
    }
    for change in changes.into_iter().flatten() {
        let mut line = Line::new(GUTTER, Style::DIM);
        for span in &change.spans {
            line.push(&escape_row(&span.text), span.style);
        }
        lines.push(line);
    }
    lines
}

/// Escapes a row of text. A tab stays readable.
fn escape_row(row: &str) -> String {
    let parts = row.split('\t').map(escape_invisible);
    parts.collect::<Vec<_>>().join("⇥   ")
}

/// Returns the answers that are possible, each with its effect.
fn answer_lines(request: &ApprovalRequest, width: usize) -> Vec<Line> {
    let mut answers = vec!["y  allow it once".to_owned()];
    if request.terms.can_remember {
        answers.push("s  allow it in this session".to_owned());
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
          s  allow it in this session
          a  allow it always, with the policy rule: allow bash,
              command `make all`
          n  deny it; `n REASON` tells the model why
        ");
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
        assert!(text.contains(&"x".repeat(5000)), "{text}");
        assert_eq!(text.lines().filter(|line| *line == "allow ls?").count(), 0);
        let yes = text.lines().filter(|line| line.starts_with("  y  "));
        assert_eq!(yes.count(), 1, "{text}");
        let end = r"allow it once\u{d}\u{1b}[2K\u{202e}\u{200b}\u{a0}\u{fe0f}";
        assert!(text.contains(end), "{text}");
        // A diff escapes what it shows, too.
        let write = json!({"path": "x", "content": "a\u{202e}b\rc"});
        let text = shown("fs.write", &write, ApprovalTerms::default(), 40);
        assert!(text.contains("+ a\\u{202e}b"), "{text}");
    }
}
