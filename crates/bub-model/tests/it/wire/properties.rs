//! Property tests: chunk boundaries do not matter, and no input makes a decoder panic or emit a damaged call as a
//! complete one. The fuzz targets check these properties too.

use std::sync::OnceLock;

use bub_model::sse::{SseDecoder, SseError};
use bub_model::{ModelError, ModelEvent, Quirks, WireFormat};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use super::scenarios::scenarios;
use super::support::DecodeBody as _;
use super::{fixtures, support};

fn one_piece(wire: WireFormat, bytes: &[u8]) -> (Vec<ModelEvent>, Option<ModelError>) {
    support::stream(wire, [bytes])
}

/// Splits bytes at all given positions.
fn cut<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

/// Returns the streams to split: those of the scenarios, and all recordings if available.
fn streams() -> &'static [(WireFormat, Vec<u8>)] {
    static STREAMS: OnceLock<Vec<(WireFormat, Vec<u8>)>> = OnceLock::new();
    STREAMS.get_or_init(|| {
        let recorded = if bub_testkit::has_fixtures() {
            fixtures::all()
        } else {
            Vec::new()
        };
        let recorded = recorded.iter().filter(|recording| recording.is_stream());
        let recorded =
            recorded.filter_map(|recording| Some((recording.wire()?, recording.wire_bytes())));
        recorded
            .chain(
                scenarios()
                    .into_iter()
                    .map(|scenario| (scenario.wire, scenario.stream)),
            )
            .collect()
    })
}

#[test]
fn byte_by_byte_is_the_same_as_at_once() {
    for (wire, bytes) in streams() {
        for size in [1, 3, 64] {
            assert_eq!(
                support::stream(*wire, bytes.chunks(size)),
                one_piece(*wire, bytes),
                "chunks of {size}"
            );
        }
    }
}

#[test]
fn any_line_ending_is_the_same() {
    for (wire, bytes) in streams() {
        let unix = String::from_utf8(bytes.clone())
            .unwrap()
            .replace("\r\n", "\n");
        for ending in ["\r\n", "\r"] {
            let other = unix.replace('\n', ending);
            assert_eq!(
                one_piece(*wire, other.as_bytes()),
                one_piece(*wire, unix.as_bytes()),
                "{ending:?}"
            );
        }
    }
}

/// A truncated stream causes an error, never a shorter answer that looks complete.
#[test]
fn a_stream_cut_anywhere_is_never_taken_for_whole() {
    for (wire, bytes) in streams() {
        let whole = support::complete(*wire, bytes);
        // Long streams are truncated at fewer positions, but always near their end, where the finish reason is.
        let step = (bytes.len() / 10).max(1);
        let ends = (0..bytes.len())
            .step_by(step)
            .chain(bytes.len().saturating_sub(30)..bytes.len());
        for end in ends {
            let Ok(found) = support::complete(*wire, &bytes[..end]) else {
                continue;
            };
            // An error after a finish reason may be lost, but the answer is still incomplete.
            let Ok(whole) = &whole else {
                assert!(
                    !found.finish.is_complete(),
                    "truncation turned an error into an answer: {found:?}"
                );
                continue;
            };
            // Only usage, state and the end marker may follow the finish reason.
            assert_eq!(
                (&found.text, &found.tool_calls),
                (&whole.text, &whole.tool_calls),
                "truncated at {end}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cutting_gives_the_same_events(
        stream in any::<Index>(),
        cuts in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        let (wire, bytes) = stream.get(streams());
        prop_assert_eq!(support::stream(*wire, cut(bytes, &cuts)), one_piece(*wire, bytes));
    }

    /// Damaged streams, as in the fuzz targets.
    #[test]
    fn damage_never_panics(
        stream in any::<Index>(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
        drop in any::<Index>(),
    ) {
        let (_, bytes) = stream.get(streams());
        let mut bytes = bytes.clone();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.remove(drop.index(bytes.len()));
        for wire in WireFormat::ALL {
            check(wire, &bytes);
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for wire in WireFormat::ALL {
            check(wire, &bytes);
        }
    }

    /// Arbitrary JSON instead of a frame.
    #[test]
    fn any_json_never_panics(values in prop::collection::vec(json(), 0..6), kind in 0_usize..12) {
        for wire in WireFormat::ALL {
            let frames: Vec<_> = values.iter().map(|value| dress(value, kind)).collect();
            check(wire, &support::sse(&frames));
            check(wire, Value::from(frames).to_string().as_bytes());
        }
    }

    #[test]
    fn events_of_a_stream_are_the_same_however_it_is_cut(
        text in "(data: [a-c]{0,3}|event: x|: c|data|id:1|)(\n|\r|\r\n|\n\n|\r\r){1,2}".prop_recursive(4, 32, 8, |inner| {
            prop::collection::vec(inner, 1..8).prop_map(|parts| parts.concat()).boxed()
        }),
        cuts in prop::collection::vec(any::<Index>(), 0..10),
    ) {
        prop_assert_eq!(events(cut(text.as_bytes(), &cuts)), events(vec![text.as_bytes()]));
    }
}

fn events(chunks: Vec<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut decoder = SseDecoder::new();
    let mut seen = Vec::new();
    let mut sink = |event: bub_model::sse::SseEvent<'_>| {
        seen.push((event.event.to_vec(), event.data.to_vec()));
        Ok::<(), SseError>(())
    };
    for chunk in chunks {
        decoder.push(chunk, &mut sink).unwrap();
    }
    decoder.finish(&mut sink).unwrap();
    seen
}

/// Checks the properties for any bytes: no panic, an end or an error, and no invalid call that is not marked.
fn check(wire: WireFormat, bytes: &[u8]) {
    let (events, error) = one_piece(wire, bytes);
    let finishes = events
        .iter()
        .filter(|event| matches!(event, ModelEvent::Finish(_)))
        .count();
    assert!(
        finishes == usize::from(error.is_none()),
        "{finishes} ends, {error:?}"
    );
    if error.is_none() {
        sound(&support::fold(events).unwrap());
    }
    if let Ok(completion) = wire.decode(bytes, &Quirks::default()) {
        sound(&completion);
    }
}

fn sound(completion: &bub_model::Completion) {
    for (index, call) in completion.tool_calls.iter().enumerate() {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let is_object = matches!(serde_json::from_str(arguments), Ok(Value::Object(_)));
        assert!(
            completion.invalid_call(index).is_some() || is_object,
            "{call}"
        );
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z{}\"]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..5).prop_map(|fields| Value::Object(
                fields
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()
            )),
        ]
    })
}

/// Field names of the wire formats.
fn key() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "choices",
        "delta",
        "message",
        "content",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "index",
        "id",
        "usage",
        "finish_reason",
        "error",
        "type",
        "content_block",
        "input",
        "partial_json",
        "stop_reason",
        "item",
        "output",
        "output_index",
        "item_id",
        "response",
        "status",
        "candidates",
        "parts",
        "functionCall",
        "args",
        "partialArgs",
        "jsonPath",
        "stringValue",
        "willContinue",
        "finishReason",
        "text",
        "thinking",
        "summary",
    ])
}

/// Wraps a value in a frame, so that the decoder reads it.
fn dress(value: &Value, kind: usize) -> Value {
    let types = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.completed",
    ];
    match kind {
        0..8 => {
            let mut frame = value.clone();
            if let Some(fields) = frame.as_object_mut() {
                fields.insert("type".into(), types[kind].into());
            }
            frame
        }
        8 => serde_json::json!({"choices": [{"delta": value}]}),
        9 => serde_json::json!({"candidates": [{"content": {"parts": [value]}}]}),
        10 => serde_json::json!({"type": "response.output_item.done", "item": value}),
        _ => value.clone(),
    }
}
