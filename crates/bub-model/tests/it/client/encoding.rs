//! Tests of responses that a proxy has compressed although bub did not request it.

use std::io::Write as _;

use bub_model::{CallOptions, ModelErrorKind, RecoveryAction, WireFormat};
use bub_testkit::model::{ModelServer, Reply};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::support::{client, collect, endpoint, quick, request, text};

const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"grüße\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn once() -> CallOptions {
    CallOptions {
        attempts: 1,
        ..quick()
    }
}

#[tokio::test]
async fn gzip_and_deflate_are_unpacked_however_they_are_cut() {
    for (encoding, packed) in [
        ("gzip", gzip(STREAM.as_bytes())),
        ("X-GZIP", gzip(STREAM.as_bytes())),
        ("deflate", deflate(STREAM.as_bytes())),
    ] {
        for bytes in [1, 3, 10_000] {
            let server = ModelServer::start();
            server.script(
                Reply::raw(packed.clone())
                    .header("content-encoding", encoding)
                    .split(bytes),
            );
            let stream = client().stream(
                endpoint(&server, WireFormat::ChatCompletions),
                request(true),
                once(),
            );
            let (events, error) = collect(stream).await;
            assert_eq!(
                (error, text(&events).as_str()),
                (None, "grüße"),
                "{encoding} {bytes}"
            );
            assert_eq!(
                server.wait_request(0).await.header("accept-encoding"),
                Some("identity")
            );
        }
    }
}

/// Flushed events are emitted immediately and not at the end of the stream.
#[tokio::test]
async fn a_compressed_event_is_not_held_back() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let (first, _) = STREAM.split_at(STREAM.find("\n\n").unwrap() + 2);
    encoder.write_all(first.as_bytes()).unwrap();
    encoder.flush().unwrap();
    let server = ModelServer::start();
    server.script(
        Reply::raw(encoder.get_ref().clone())
            .header("content-encoding", "gzip")
            .then_hold(),
    );
    let mut stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    );
    let event = tokio::time::timeout(
        super::support::TEST_TIMEOUT,
        futures_util::StreamExt::next(&mut stream),
    )
    .await;
    assert_eq!(text(&[event.unwrap().unwrap().unwrap()]), "grüße");
}

#[tokio::test]
async fn a_compressed_error_is_read_and_a_damaged_answer_is_one() {
    let server = ModelServer::start();
    let refusal = gzip(br#"{"error":{"message":"slow down","code":"rate_limit_exceeded"}}"#);
    server.script(
        Reply::raw(refusal)
            .header("content-encoding", "gzip")
            .with_status(429),
    );
    let mut damaged = gzip(STREAM.as_bytes());
    damaged[14] ^= 0xff;
    server.script(Reply::raw(damaged).header("content-encoding", "gzip"));
    let cut = gzip(STREAM.as_bytes())[..40].to_vec();
    server.script(Reply::raw(cut).header("content-encoding", "gzip"));
    let mut errors = Vec::new();
    for _ in 0..3 {
        let stream = client().stream(
            endpoint(&server, WireFormat::ChatCompletions),
            request(true),
            once(),
        );
        errors.push(collect(stream).await.1.unwrap());
    }
    assert_eq!(
        (errors[0].action, errors[0].message.as_str()),
        (RecoveryAction::Retry, "slow down; try again later")
    );
    assert!(
        matches!(
            errors[1].kind,
            ModelErrorKind::Malformed | ModelErrorKind::Truncated
        ),
        "{:?}",
        errors[1]
    );
    assert_eq!(errors[2].kind, ModelErrorKind::Truncated, "{:?}", errors[2]);
}

#[tokio::test]
async fn another_encoding_is_named_and_not_retried() {
    let server = ModelServer::start();
    server.otherwise(Reply::raw([0x8b, 0x01]).header("content-encoding", "br"));
    let stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        quick(),
    );
    let error = collect(stream).await.1.unwrap();
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Malformed, RecoveryAction::NextModel)
    );
    assert!(error.message.contains("compressed as `br`"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// A few compressed bytes expand to more than the limit of an event.
#[tokio::test]
async fn a_bomb_is_refused() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![b'x'; 1024 * 1024];
    encoder.write_all(b"data: ").unwrap();
    (0..18).for_each(|_| encoder.write_all(&zeros).unwrap());
    let server = ModelServer::start();
    server.script(Reply::raw(encoder.finish().unwrap()).header("content-encoding", "gzip"));
    let stream = client().stream(
        endpoint(&server, WireFormat::ChatCompletions),
        request(true),
        once(),
    );
    assert_eq!(
        collect(stream).await.1.unwrap().kind,
        ModelErrorKind::TooLarge
    );
}
