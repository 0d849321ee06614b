//! A report as one HTML page without scripts.

use std::fmt::Write as _;

use bub::output::sanitize;

use super::{CallSummary, ReplayReport};

const HEAD: &str = "<!doctype html>
<meta charset=\"utf-8\">
<title>Replay</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; table-layout: fixed; width: 100% }
th, td { border: 1px solid #8886; padding: .4rem .6rem; text-align: left; vertical-align: top }
pre { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap }
.differs { background: #f005 }
</style>
";

/// Returns the report as a page.
pub(crate) fn to_html(report: &ReplayReport) -> String {
    let mut out = format!("{HEAD}<h1>Replay of {}</h1>\n", escape(&report.session_id));
    let outcome = capitalize(&report.outcome());
    let model = report.model.as_deref().unwrap_or("the tape");
    let _ = writeln!(out, "<p>Answers from {}. {outcome}.</p>", escape(model));
    for problem in report.problems() {
        let text = escape(&problem);
        let _ = writeln!(out, "<p class=\"differs\">Error: {text}</p>");
    }
    out.push_str("<table>\n<tr><th></th><th>Recorded</th><th>Replayed</th></tr>\n");
    let (left, right) = (report.recorded.to_line(), report.replayed.to_line());
    let _ = writeln!(
        out,
        "<tr><th>Sum</th><td>{left}</td><td>{right}</td></tr>\n</table>"
    );
    for turn in &report.turns {
        let _ = writeln!(
            out,
            "<h2>Turn {}</h2>\n<pre>{}</pre>",
            turn.number,
            escape(&turn.prompt)
        );
        if let Some(note) = turn.note() {
            let _ = writeln!(out, "<p>{}.</p>", capitalize(&note));
        }
        out.push_str("<table>\n<tr><th>Recorded</th><th>Replayed</th></tr>\n");
        for step in &turn.steps {
            let class = if step.differences.is_empty() {
                ""
            } else {
                " class=\"differs\""
            };
            let notes = escape(&step.differences.join("\n"));
            let _ = writeln!(
                out,
                "<tr{class}><th colspan=\"2\">Step {}<pre>{notes}</pre></th></tr>",
                step.number
            );
            let cell = |call: &Option<CallSummary>| {
                let call = call.as_ref();
                call.map(|call| {
                    escape(&format!("{}\n({})", call.to_lines(), call.totals.to_line()))
                })
            };
            let (left, right) = (cell(&step.recorded), cell(&step.replayed));
            let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
            let _ = writeln!(
                out,
                "<tr><td><pre>{left}</pre></td><td><pre>{right}</pre></td></tr>"
            );
        }
        out.push_str("</table>\n");
    }
    out
}

fn capitalize(text: &str) -> String {
    let (first, rest) = text.split_at_checked(1).unwrap_or_default();
    first.to_uppercase() + rest
}

pub(crate) fn escape(text: &str) -> String {
    sanitize(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
