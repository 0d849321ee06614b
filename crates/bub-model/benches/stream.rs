//! CPU time of decoding one delta. It must not depend on the length of the stream.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic on errors")]

use bub_model::{Accumulator, Quirks, WireFormat};
use bub_testkit::bench_output::{is_quick, measure_minimum, print_time};

const FRAME: &str = "data: {\"id\":\"chatcmpl-8bVs1Ih44Vun5ikcJ89KwlAr5ftDekeT\",\"object\":\"chat.completion.chunk\",\
    \"created\":1762317021,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
const END: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

fn decode(stream: &[u8]) -> usize {
    let mut decoder = WireFormat::ChatCompletions.decoder(&Quirks::default());
    let (mut events, mut accumulator) = (Vec::new(), Accumulator::new());
    // Typical number of bytes that a connection delivers at a time.
    for chunk in stream.chunks(16 * 1024) {
        decoder.push(chunk, &mut events).unwrap();
        for event in events.drain(..) {
            accumulator.push(event);
        }
    }
    decoder.finish(&mut events).unwrap();
    for event in events {
        accumulator.push(event);
    }
    accumulator.finish().unwrap().text.len()
}

fn main() {
    for deltas in [100, 1_000, 10_000, 100_000]
        .into_iter()
        .filter(|deltas| !is_quick() || *deltas <= 10_000)
    {
        let stream = FRAME.repeat(deltas) + END;
        let cost = measure_minimum(20, || {
            assert_eq!(decode(stream.as_bytes()), deltas * " word".len());
        });
        print_time(
            &format!("decode_cpu_of_a_delta/{deltas}"),
            cost.cpu / u32::try_from(deltas).unwrap(),
        );
    }
}
