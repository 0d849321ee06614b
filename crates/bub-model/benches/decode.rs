//! Speed and memory use of decoding long streams.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic on errors")]

use std::fmt::Write as _;

use bub_model::sse::{SseDecoder, SseError};
use bub_model::{Accumulator, Quirks, WireFormat};
use divan::counter::{BytesCount, ItemsCount};
use divan::{AllocProfiler, Bencher, black_box};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Typical number of bytes that a connection delivers at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Returns a typical chat-completions stream, with a frame of about 300 bytes per word.
fn chat_stream(deltas: usize) -> Vec<u8> {
    let mut stream = String::new();
    for n in 0..deltas {
        write!(
            stream,
            "data: {{\"id\":\"chatcmpl-8bVs1Ih44Vun5ikcJ89KwlAr5ftDekeT\",\"object\":\"chat.completion.chunk\",\
             \"created\":1762317021,\"model\":\"gpt-5-nano-2025-08-07\",\"service_tier\":\"default\",\
             \"system_fingerprint\":null,\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word{n}\"}},\
             \"logprobs\":null,\"finish_reason\":null}}],\"usage\":null,\"obfuscation\":\"ywLH2r1kcaeOOkq\"}}\n\n"
        )
        .unwrap();
    }
    stream.push_str(
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    stream.into_bytes()
}

fn messages_stream(deltas: usize) -> Vec<u8> {
    let mut stream = String::from(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\"}}\n\n",
    );
    for n in 0..deltas {
        write!(
            stream,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\"text\":\" word{n}\"}}}}\n\n"
        )
        .unwrap();
    }
    stream.push_str(
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
    );
    stream.into_bytes()
}

#[divan::bench]
fn sse_only(bencher: Bencher<'_, '_>) {
    let stream = chat_stream(20_000);
    bencher.counter(BytesCount::of_slice(&stream)).bench(|| {
        let mut decoder = SseDecoder::new();
        let mut length = 0;
        for chunk in stream.chunks(CHUNK_BYTES) {
            decoder
                .push(chunk, |event| {
                    length += event.data.len();
                    Ok::<(), SseError>(())
                })
                .unwrap();
        }
        length
    });
}

fn decode(wire: WireFormat, stream: &[u8]) -> usize {
    let mut decoder = wire.decoder(&Quirks::default());
    let mut events = Vec::new();
    let mut accumulator = Accumulator::new();
    for chunk in stream.chunks(CHUNK_BYTES) {
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

/// Budget: at least 100 MB/s.
#[divan::bench]
fn chat_completions(bencher: Bencher<'_, '_>) {
    let stream = chat_stream(20_000);
    bencher
        .counter(BytesCount::of_slice(&stream))
        .bench(|| decode(WireFormat::ChatCompletions, black_box(&stream)));
}

#[divan::bench]
fn messages(bencher: Bencher<'_, '_>) {
    let stream = messages_stream(20_000);
    bencher
        .counter(BytesCount::of_slice(&stream))
        .bench(|| decode(WireFormat::Messages, black_box(&stream)));
}

/// Budget: memory beyond the text does not depend on the number of deltas; compare `max alloc`.
#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 5)]
fn long_stream(bencher: Bencher<'_, '_>, deltas: usize) {
    let stream = chat_stream(deltas);
    bencher
        .counter(ItemsCount::new(deltas))
        .bench(|| decode(WireFormat::ChatCompletions, black_box(&stream)));
}
