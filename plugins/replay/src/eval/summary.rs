//! The results of an evaluation: text, `JUnit` XML, and the comparison of variants.

use std::fmt::Write as _;

use bub::output::sanitize;

use super::run::CaseOutcome;
use crate::report::{CallTotals, escape};

/// Returns the results as text: one line per case and variant, the reasons of failures, and one line per variant.
pub(super) fn to_text(outcomes: &[CaseOutcome]) -> String {
    let mut out = String::new();
    for group in outcomes
        .chunk_by(|left, right| (&left.case, &left.variant) == (&right.case, &right.variant))
    {
        let passed = group
            .iter()
            .filter(|outcome| outcome.failures.is_empty())
            .count();
        let status = if passed == group.len() {
            "ok  "
        } else {
            "FAIL"
        };
        let Some(first) = group.first() else {
            continue;
        };
        let runs = if group.len() > 1 {
            format!(" {passed}/{}", group.len())
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "{status} {}{}{runs}  {}",
            first.case,
            label(&first.variant),
            first.totals.to_line()
        );
        for outcome in group.iter().filter(|outcome| !outcome.failures.is_empty()) {
            for failure in &outcome.failures {
                let _ = writeln!(out, "     run {}: {}", outcome.run, sanitize(failure));
            }
        }
    }
    let mut variants: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !variants.contains(&outcome.variant.as_str()) {
            variants.push(&outcome.variant);
        }
    }
    for variant in variants {
        let of_variant: Vec<&CaseOutcome> = outcomes
            .iter()
            .filter(|outcome| outcome.variant == variant)
            .collect();
        let passed = of_variant
            .iter()
            .filter(|outcome| outcome.failures.is_empty())
            .count();
        let mut totals = CallTotals::default();
        for outcome in &of_variant {
            totals.add(&outcome.totals);
        }
        let (tokens, cost) = (
            totals.input_tokens + totals.output_tokens,
            totals.cost_text(),
        );
        let count = of_variant.len();
        let _ = writeln!(
            out,
            "{passed} of {count} passed{}, {tokens} tokens, {cost}",
            label(variant)
        );
    }
    out
}

fn label(variant: &str) -> String {
    if variant.is_empty() {
        return String::new();
    }
    format!(" [{}]", sanitize(variant))
}

/// Returns the results in the `JUnit` format, one test suite per variant.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a test are far below 2^52"
)]
pub(super) fn to_junit(outcomes: &[CaseOutcome]) -> String {
    let failed = outcomes
        .iter()
        .filter(|outcome| !outcome.failures.is_empty())
        .count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"bub eval\" tests=\"{}\" failures=\"{failed}\">\n",
        outcomes.len()
    );
    for outcome in outcomes {
        // Readers of the format group by class, and some refuse an empty one.
        let class = Some(outcome.variant.as_str()).filter(|variant| !variant.is_empty());
        let (name, class) = (
            xml_text(&outcome.case),
            xml_text(class.unwrap_or("bub eval")),
        );
        let seconds = outcome.totals.elapsed_ms as f64 / 1000.0;
        let _ = write!(
            out,
            "  <testcase name=\"{name} #{}\" classname=\"{class}\" time=\"{seconds:.3}\"",
            outcome.run
        );
        if outcome.failures.is_empty() {
            out.push_str("/>\n");
            continue;
        }
        let first = outcome
            .failures
            .first()
            .map(|failure| xml_text(failure))
            .unwrap_or_default();
        let all = xml_text(&outcome.failures.join("\n"));
        let _ = writeln!(
            out,
            ">\n    <failure message=\"{first}\">{all}</failure>\n  </testcase>"
        );
    }
    out.push_str("</testsuite>\n");
    out
}

/// Escapes a text and replaces characters that XML 1.0 does not allow.
fn xml_text(text: &str) -> String {
    let letters = text.chars().map(|letter| match letter {
        '\t' | '\n' | '\r' => letter,
        '\0'..' ' | '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        _ => letter,
    });
    escape(&letters.collect::<String>())
}
