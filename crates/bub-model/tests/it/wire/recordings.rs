//! Checks that every recording decodes to the expected answer or error.

use bub_model::classify::classify;
use bub_model::{Completion, ModelError, ModelErrorKind, Quirks, Usage};
use serde_json::Value;

use super::fixtures::{self, Recording};
use super::reference::{self, Expected};
use super::support::{self, DecodeBody as _};

#[bub_testkit::needs_fixtures]
#[test]
fn every_recording_decodes_to_what_it_says() {
    let recordings = fixtures::all();
    let mut failures = Vec::new();
    for recording in &recordings {
        let outcome = check(recording);
        let (mark, note) = match &outcome {
            Ok(note) => ("ok  ", note.as_str()),
            Err(note) => ("FAIL", note.as_str()),
        };
        println!("{mark} {:18} {:90} {note}", recording.api, recording.file);
        failures.extend(
            outcome
                .err()
                .map(|note| format!("{}: {note}", recording.file)),
        );
    }
    println!("{} recordings, {} failed", recordings.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check(recording: &Recording) -> Result<String, String> {
    let Some(wire) = recording.wire() else {
        return Ok("not applicable: none of our formats".into());
    };
    let quirks = Quirks::default();
    if recording.is_error() {
        return check_error(recording);
    }
    if !recording.is_stream() {
        let body: Value = serde_json::from_slice(&recording.bytes).unwrap();
        let expected = reference::expect(&recording.api, &[body]);
        return compare(recording, &expected, wire.decode(&recording.bytes, &quirks));
    }
    let bytes = recording.wire_bytes();
    let expected = reference::expect(&recording.api, &reference::frames(&bytes));
    compare(recording, &expected, support::complete(wire, &bytes))
}

/// Checks that recorded errors are errors, short, and without HTML. Other tests check their classification. Errors
/// recorded with status 200 occurred inside a stream.
fn check_error(recording: &Recording) -> Result<String, String> {
    let wire = recording.wire().unwrap();
    let error = if recording.status == Some(200) {
        let text = String::from_utf8(recording.bytes.clone()).unwrap();
        let stream = format!("event: error\ndata: {}\n\n", text.replace('\n', ""));
        let (_, error) = support::stream(wire, [stream.as_bytes()]);
        let whole = wire.decode(&recording.bytes, &Quirks::default());
        if whole.is_ok() {
            return Err("taken for an answer".into());
        }
        error.ok_or("the stream did not fail")?
    } else {
        classify(recording.status, None, &recording.bytes)
    };
    if error.kind != ModelErrorKind::Provider
        || error.message.is_empty()
        || error.message.chars().count() > 401
    {
        return Err(format!("{error:?}"));
    }
    Ok(format!("{:?} {error}", error.action))
}

fn compare(
    recording: &Recording,
    expected: &Expected,
    found: Result<Completion, ModelError>,
) -> Result<String, String> {
    let found = match found {
        Err(error) if expected.error && error.kind == ModelErrorKind::Provider => {
            return Ok(format!("{:?} {error}", error.action));
        }
        Err(error) => return Err(format!("failed: {error:?}")),
        Ok(_) if expected.error => return Err("an error inside was overlooked".into()),
        Ok(found) => found,
    };
    let seen = outcome(&found);
    // The finish reason `stop` with tool calls means `tool_calls`.
    let finish = if expected.finish == "stop" && !expected.calls.is_empty() {
        "tool_calls"
    } else {
        &expected.finish
    };
    if seen.text != expected.text || seen.reasoning != expected.reasoning {
        return Err(format!(
            "text {:?} or reasoning {:?} differ from {expected:?}",
            seen.text, seen.reasoning
        ));
    }
    if (&seen.calls, &seen.ids) != (&expected.calls, &expected.ids) {
        return Err(format!(
            "calls {:?} {:?} differ from {:?}",
            seen.calls, seen.ids, expected.calls
        ));
    }
    if !same_usage(seen.usage, expected.usage) {
        return Err(format!(
            "usage {:?} differs from {:?}",
            seen.usage, expected.usage
        ));
    }
    if seen.finish != finish {
        return Err(format!("finish {} differs from {finish}", seen.finish));
    }
    labels(recording, &found)?;
    let usage = found
        .usage
        .as_ref()
        .map(|usage| format!("{}+{}", usage.prompt, usage.completion));
    Ok(format!(
        "{} text {} reasoning {} calls {} usage {}{}",
        found.finish,
        found.text.len(),
        found.reasoning.len(),
        found.tool_calls.len(),
        usage.as_deref().unwrap_or("-"),
        if found.provider_state.is_some() {
            " state"
        } else {
            ""
        },
    ))
}

/// Checks that the outcome has the features that the manifest lists.
fn labels(recording: &Recording, found: &Completion) -> Result<(), String> {
    let usage = found.usage.clone().unwrap_or_default();
    let checks = [
        ("truncated", found.finish.as_str() == "length"),
        ("finish_tool", found.finish.as_str() == "tool_calls"),
        ("parallel_tools", found.tool_calls.len() > 1),
        ("streamed_function_args", found.tool_calls.len() > 1),
        ("cached", usage.cached.is_some()),
        (
            "cache_write",
            usage.cache_write.is_some_and(|written| written > 0),
        ),
        ("reasoning_tokens", usage.reasoning.is_some()),
        ("redacted_thinking", found.provider_state.is_some()),
        ("signature_delta", found.provider_state.is_some()),
        ("thought_signature", found.provider_state.is_some()),
        // Some of these recordings have it only in the request.
        (
            "encrypted_reasoning",
            found.provider_state.is_some() || !recording.contains("encrypted_content"),
        ),
        ("mid_stream_error", false),
    ];
    for (label, holds) in checks {
        if recording.shows(label) && !holds {
            return Err(format!("the manifest says it shows `{label}`: {found:?}"));
        }
    }
    let sound = found.invalid_calls.is_empty() || found.finish.as_str() == "length";
    if sound {
        Ok(())
    } else {
        Err(format!("broken calls {:?}", found.invalid_calls))
    }
}

fn outcome(found: &Completion) -> Expected {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let call = |call: &Value| {
        let arguments = text(&call["function"]["arguments"]);
        let parsed = serde_json::from_str(&arguments).unwrap_or(Value::from(arguments));
        (text(&call["function"]["name"]), parsed)
    };
    let counts = |usage: &Usage| {
        [
            Some(usage.prompt),
            Some(usage.completion),
            Some(usage.total),
            usage.cached,
            usage.reasoning,
        ]
    };
    Expected {
        text: found.text.clone(),
        reasoning: found.reasoning.clone(),
        calls: found.tool_calls.iter().map(call).collect(),
        ids: found
            .tool_calls
            .iter()
            .map(|call| text(&call["id"]))
            .collect(),
        usage: found.usage.as_ref().map(counts),
        finish: found.finish.as_str().to_owned(),
        error: false,
    }
}

/// Compares counts. The reference decoder reads only the official names; servers may use others too.
fn same_usage(seen: Option<[Option<u64>; 5]>, expected: Option<[Option<u64>; 5]>) -> bool {
    match (seen, expected) {
        (Some(seen), Some(expected)) => {
            seen.iter()
                .zip(expected)
                .enumerate()
                .all(|(at, (seen, expected))| match expected {
                    None if at >= 3 => true,
                    expected => seen.unwrap_or(0) == expected.unwrap_or(0),
                })
        }
        (seen, expected) => seen.is_none() && expected.is_none(),
    }
}
