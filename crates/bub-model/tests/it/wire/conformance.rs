//! Conformance tests: every scenario in every wire format. Scenarios that a format does not support are declared here
//! with the reason. A scenario that is neither implemented nor declared fails the tests.

use super::scenarios::{NAMES, Scenario, scenarios};
use super::support::{self, DecodeBody as _};
use bub_model::{
    Completion, FinishReason, ModelError, ModelErrorKind, Quirks, RecoveryAction, WireFormat,
};

/// Scenarios that a format does not support, with the reason.
const CANNOT: [(WireFormat, &str, &str); 2] = [
    (
        WireFormat::Messages,
        "content filter",
        "the format knows only refusals",
    ),
    (
        WireFormat::GenerateContent,
        "refusal",
        "the format reports refusals as safety stops",
    ),
];

#[test]
fn every_format_plays_every_scenario() {
    let scenarios = scenarios();
    println!(
        "{:28} {}",
        "",
        WireFormat::ALL
            .map(|wire| format!("{:20}", wire.name()))
            .join("")
    );
    for name in NAMES {
        let row = WireFormat::ALL.map(|wire| {
            let declared = CANNOT
                .iter()
                .find(|(format, scenario, _)| (*format, *scenario) == (wire, name));
            let played = scenarios
                .iter()
                .find(|scenario| (scenario.wire, scenario.name) == (wire, name));
            match (played, declared) {
                (Some(scenario), None) => {
                    play(scenario);
                    "ok"
                }
                (None, Some(_)) => "cannot",
                (played, _) => panic!("{name} in {}: played {}", wire.name(), played.is_some()),
            }
        });
        println!(
            "{name:28} {}",
            row.map(|cell| format!("{cell:20}")).join("")
        );
    }
    for (wire, name, reason) in CANNOT {
        println!("cannot: {name} in {}: {reason}", wire.name());
    }
}

fn play(scenario: &Scenario) {
    let context = format!("{} in {}", scenario.name, scenario.wire.name());
    expect(
        scenario.name,
        support::complete(scenario.wire, &scenario.stream),
        &context,
    );
    if let Some(whole) = &scenario.whole {
        let body = whole.to_string();
        let context = format!("{context}, whole");
        expect(
            scenario.name,
            scenario.wire.decode(body.as_bytes(), &Quirks::default()),
            &context,
        );
        // A server may send a complete body although a stream was requested.
        expect(
            scenario.name,
            support::complete(scenario.wire, body.as_bytes()),
            &context,
        );
    }
}

fn expect(name: &str, found: Result<Completion, ModelError>, context: &str) {
    if matches!(name, "error inside" | "cut stream") {
        let error = found.expect_err(context);
        let kind = if name == "cut stream" {
            ModelErrorKind::Truncated
        } else {
            ModelErrorKind::Provider
        };
        assert_eq!(
            (error.kind, error.action),
            (kind, RecoveryAction::Retry),
            "{context}: {error:?}"
        );
        return;
    }
    let found = found.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let names: Vec<_> = found
        .tool_calls
        .iter()
        .map(|call| call["function"]["name"].as_str().unwrap())
        .collect();
    let arguments: Vec<_> = found
        .tool_calls
        .iter()
        .map(|call| call["function"]["arguments"].as_str().unwrap())
        .collect();
    let broken: Vec<_> = found.invalid_calls.iter().map(|call| call.index).collect();
    match name {
        "text" => assert_eq!(
            (&*found.text, &found.finish),
            ("Hé there", &FinishReason::Stop),
            "{context}"
        ),
        "reasoning" => {
            assert_eq!(
                (&*found.reasoning, &*found.text),
                ("because", "so"),
                "{context}"
            );
        }
        "two tool calls" => {
            assert_eq!(
                (names, found.finish),
                (vec!["f", "g"], FinishReason::ToolCalls),
                "{context}"
            );
            assert_eq!(arguments, [r#"{"a":1}"#, r#"{"b":[2]}"#], "{context}");
            assert_ne!(
                found.tool_calls[0]["id"], found.tool_calls[1]["id"],
                "{context}"
            );
            assert!(broken.is_empty(), "{context}");
        }
        // W-7: text beside tool calls is kept.
        "text and tool call" => {
            assert_eq!(
                (&*found.text, names, found.finish),
                ("look", vec!["f"], FinishReason::ToolCalls),
                "{context}"
            );
        }
        "call without arguments" => {
            assert_eq!(
                (names, arguments, broken),
                (vec!["f"], vec!["{}"], vec![]),
                "{context}"
            );
        }
        "length" => {
            assert_eq!(
                (&*found.text, &found.finish),
                ("half of", &FinishReason::Length),
                "{context}"
            );
        }
        // W-6: the call is marked as invalid, so that the model gets an error result and the turn continues.
        "cut arguments" => {
            assert_eq!(
                (broken, found.finish),
                (vec![0], FinishReason::Length),
                "{context}"
            );
            assert!(
                found.invalid_calls[0].reason.contains("token limit"),
                "{context}"
            );
        }
        "refusal" => assert_eq!(found.finish, FinishReason::Refusal, "{context}"),
        "content filter" => assert_eq!(found.finish, FinishReason::ContentFilter, "{context}"),
        "cached and reasoning tokens" => {
            let usage = found.usage.expect(context);
            let counts = (
                usage.prompt,
                usage.completion,
                usage.total,
                usage.cached,
                usage.reasoning,
            );
            assert_eq!(counts, (100, 20, 120, Some(64), Some(7)), "{context}");
        }
        other => panic!("nothing expected of {other}"),
    }
}
