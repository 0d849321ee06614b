//! Overhead of the client compared to a raw socket, and memory use of long streams.
//!
//! `first_event_raw` and `first_event_client` send one request to one server. Their difference is the overhead of the
//! client: request, HTTP, decoding, stream. `deltas` reads streams of different lengths; its peak memory must not grow
//! with the number of deltas.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark may panic on errors"
)]

use std::sync::Arc;

use bub_model::{
    BaseUrl, CallOptions, ChatRequest, Endpoint, HttpOptions, ModelClient, ModelEvent, ModelId,
    WireFormat,
};
use bub_settings::{Redactor, Secret};
use bub_testkit::model::{ModelServer, Reply};
use divan::{AllocProfiler, Bencher, counter::ItemsCount};
use futures_util::StreamExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn request() -> ChatRequest {
    let messages = Arc::new(vec![json!({"role": "user", "content": "hi"})]);
    ChatRequest {
        model: "m".into(),
        messages,
        stream: true,
        ..ChatRequest::default()
    }
}

fn endpoint(server: &ModelServer) -> Endpoint {
    let base = BaseUrl::parse(&format!("{}/v1", server.url())).unwrap();
    Endpoint::new(ModelId::new("test", "m"), WireFormat::ChatCompletions, base)
        .with_key(&Secret::from("sk-bench-123456"))
}

fn server() -> ModelServer {
    let server = ModelServer::start();
    server.otherwise(Reply::text("hello"));
    server
}

/// Writes a request to an open connection and searches the response for the first text.
#[divan::bench]
fn first_event_raw(bencher: Bencher<'_, '_>) {
    let (runtime, server) = (runtime(), server());
    let mut socket = runtime
        .block_on(TcpStream::connect(server.address()))
        .unwrap();
    socket.set_nodelay(true).unwrap();
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request = format!("{head}{body}");
    bencher.bench_local(|| {
        runtime.block_on(async {
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.windows(5).any(|bytes| bytes == b"hello") {
                socket.read_buf(&mut answer).await.unwrap();
            }
            while !answer.ends_with(b"0\r\n\r\n") {
                socket.read_buf(&mut answer).await.unwrap();
            }
            answer
        })
    });
}

/// Sends a request with the client and reads the stream to its end.
#[divan::bench]
fn first_event_client(bencher: Bencher<'_, '_>) {
    let (runtime, server) = (runtime(), server());
    let client = ModelClient::new(HttpOptions::default(), Redactor::new());
    let endpoint = endpoint(&server);
    bencher.bench_local(|| {
        runtime.block_on(async {
            let mut stream = client.stream(endpoint.clone(), request(), CallOptions::default());
            let mut events = 0;
            while let Some(event) = stream.next().await {
                event.unwrap();
                events += 1;
            }
            events
        })
    });
}

/// Makes the first call of a process: builds the client and opens a connection.
#[divan::bench]
fn first_call_of_a_process(bencher: Bencher<'_, '_>) {
    let (runtime, server) = (runtime(), server());
    let endpoint = endpoint(&server);
    bencher.bench_local(|| {
        runtime.block_on(async {
            let client = ModelClient::new(HttpOptions::default(), Redactor::new());
            let mut stream = client.stream(endpoint.clone(), request(), CallOptions::default());
            while stream.next().await.is_some() {}
        });
    });
}

/// Reads streams of different lengths. The peak ("max alloc") must be equal for all lengths.
#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 3, sample_size = 1)]
fn deltas(bencher: Bencher<'_, '_>, count: usize) {
    let (runtime, server) = (runtime(), ModelServer::start());
    let frame =
        "data: {\"choices\":[{\"delta\":{\"content\":\"word \"},\"finish_reason\":null}]}\n\n";
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    server.otherwise(Reply::raw(frame.repeat(count) + end).split(4096));
    let client = ModelClient::new(HttpOptions::default(), Redactor::new());
    let endpoint = endpoint(&server);
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        runtime.block_on(async {
            let mut stream = client.stream(endpoint.clone(), request(), CallOptions::default());
            let mut texts = 0_usize;
            while let Some(event) = stream.next().await {
                texts += usize::from(matches!(event.unwrap(), ModelEvent::Text(_)));
            }
            assert_eq!(texts, count);
        });
    });
}
