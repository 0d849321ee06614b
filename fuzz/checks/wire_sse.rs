//! Any bytes give the same events however they are split. The first bytes select the splits.

use bub_model::sse::{SseDecoder, SseError, SseEvent};

/// The name and the data of an event.
type Event = (Vec<u8>, Vec<u8>);

fn events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Event>, SseError> {
    let mut decoder = SseDecoder::with_limit(4096);
    let mut seen = Vec::new();
    let mut sink = |event: SseEvent<'_>| {
        assert!(!event.data.is_empty());
        seen.push((event.event.to_vec(), event.data.to_vec()));
        Ok::<(), SseError>(())
    };
    for chunk in chunks {
        decoder.push(chunk, &mut sink)?;
    }
    decoder.finish(&mut sink)?;
    Ok(seen)
}

pub(crate) fn check(input: &[u8]) {
    let Some((size, bytes)) = input.split_first() else {
        return;
    };
    let chunks = bytes.chunks(usize::from(*size).max(1));
    // The chunks affect where a limit is detected, and for a last line also whether it is detected.
    if let (Ok(cut), Ok(whole)) = (events(chunks), events([bytes])) {
        assert_eq!(cut, whole);
    }
}
