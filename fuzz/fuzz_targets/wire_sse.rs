//! Any bytes, cut anywhere, give the same events. The first bytes say where to cut.
#![no_main]

use bub_model::sse::{SseDecoder, SseError, SseEvent};
use libfuzzer_sys::fuzz_target;

fn events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<(Vec<u8>, Vec<u8>)>, SseError> {
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

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else { return };
    let chunks = bytes.chunks(usize::from(*size).max(1));
    // Where a limit is noticed depends on the chunks; that it is noticed may, too, for a last line.
    if let (Ok(cut), Ok(whole)) = (events(chunks), events([bytes])) {
        assert_eq!(cut, whole);
    }
});
