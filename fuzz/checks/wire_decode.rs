//! Any bytes in any wire format give the same events however they are split, one end or one error,
//! and no damaged tool call that looks complete. The first byte selects format and chunk size.

use bub_model::{Accumulator, Completion, ModelError, ModelEvent, Quirks, WireFormat};
use serde_json::Value;

fn stream<'a>(
    wire: WireFormat,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Result<(), ModelError>) {
    let mut decoder = wire.decoder(&Quirks {
        replay_reasoning: true,
        ..Quirks::default()
    });
    let mut events = Vec::new();
    for chunk in chunks {
        if let Err(error) = decoder.push(chunk, &mut events) {
            return (events, Err(error));
        }
    }
    let end = decoder.finish(&mut events);
    (events, end)
}

fn check_calls(completion: &Completion) {
    for (index, call) in completion.tool_calls.iter().enumerate() {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let whole = matches!(serde_json::from_str(arguments), Ok(Value::Object(_)));
        assert!(whole || completion.invalid_call(index).is_some(), "{call}");
    }
}

pub(crate) fn check(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let wire = WireFormat::ALL[usize::from(first % 4)];
    let (events, end) = stream(wire, [bytes]);
    let cut = stream(wire, bytes.chunks(usize::from(first / 4) + 1));
    assert_eq!((&events, &end), (&cut.0, &cut.1));
    let ends = events
        .iter()
        .filter(|event| matches!(event, ModelEvent::Finish(_)))
        .count();
    assert_eq!(ends, usize::from(end.is_ok()));
    if end.is_ok() {
        let mut accumulator = Accumulator::new();
        for event in events {
            accumulator.push(event);
        }
        check_calls(&accumulator.finish().expect("the end was seen"));
    }
}
