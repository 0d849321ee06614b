//! Tests of the scripted model server over a raw socket.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use bub_testkit::model::{Finish, Format, ManualClock, ModelServer, Pace, Reply, ReplyUsage};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns the path that a client of each format posts to for a stream.
fn target(format: Format) -> &'static str {
    match format {
        Format::Chat => "/v1/chat/completions",
        Format::Responses => "/v1/responses",
        Format::Messages => "/v1/messages",
        Format::Generate => "/v1beta/models/m:streamGenerateContent?alt=sse",
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
    /// Whether the last chunk arrived.
    whole: bool,
}

impl Answer {
    fn events(&self) -> Vec<Value> {
        let data = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok())
            .collect()
    }
}

fn send(socket: &mut TcpStream, path: &str, body: &Value) {
    let body = body.to_string();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-Test: yes\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

/// Reads to the end of the connection or of the chunked body.
fn receive(socket: &mut TcpStream) -> Result<Answer, std::io::Error> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let mut whole = false;
    while !whole {
        let count = socket.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        whole = bytes.ends_with(b"0\r\n\r\n");
        if count == 0 {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, mut rest) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    Ok(Answer {
        status,
        head: head.to_owned(),
        body,
        whole,
    })
}

fn ask(server: &ModelServer, format: Format, stream: bool) -> Answer {
    let mut socket = TcpStream::connect(server.address()).unwrap();
    let path = target(format);
    let path = if stream {
        path.to_owned()
    } else {
        path.replace(":streamGenerateContent", ":generateContent")
    };
    send(&mut socket, &path, &json!({"model": "m", "stream": stream}));
    receive(&mut socket).unwrap()
}

#[test]
fn one_script_speaks_every_format_streamed_and_whole() {
    for format in Format::ALL {
        for stream in [true, false] {
            let server = ModelServer::start();
            server.script(
                Reply::new()
                    .reasoning("thinking")
                    .say("hello")
                    .call("call_1", "first", r#"{"a":1}"#)
                    .split_call("call_2", "second", ["{\"b\"", ":2}"])
                    .usage(ReplyUsage {
                        input: 100,
                        output: 20,
                        cached: 40,
                        reasoning: 7,
                    }),
            );
            let answer = ask(&server, format, stream);
            assert_eq!(answer.status, 200);
            assert!(answer.whole);
            let kind = if stream {
                "text/event-stream"
            } else {
                "application/json"
            };
            assert!(answer.head.contains(kind), "{}", answer.head);
            for word in [
                "thinking", "hello", "call_1", "first", "call_2", "second", "40",
            ] {
                assert!(
                    answer.body.contains(word),
                    "{format:?} {stream}: {word} in {}",
                    answer.body
                );
            }
            if stream {
                assert!(answer.events().len() > 4);
            } else {
                serde_json::from_str::<Value>(&answer.body).unwrap();
            }
            assert_eq!(server.requests()[0].format(), Some(format));
        }
    }
}

#[test]
fn finish_reasons_are_said_in_the_words_of_the_format() {
    let words = [
        (
            Format::Chat,
            ["\"stop\"", "\"length\"", "\"content_filter\""],
        ),
        (
            Format::Responses,
            ["response.completed", "max_output_tokens", "content_filter"],
        ),
        (Format::Messages, ["end_turn", "max_tokens", "refusal"]),
        (Format::Generate, ["STOP", "MAX_TOKENS", "SAFETY"]),
    ];
    for (format, words) in words {
        for (finish, word) in [Finish::Stop, Finish::Length, Finish::Filter]
            .into_iter()
            .zip(words)
        {
            let server = ModelServer::start();
            server.script(Reply::text("x").finish(finish));
            assert!(
                ask(&server, format, true).body.contains(word),
                "{format:?} {finish:?}"
            );
        }
    }
}

#[test]
fn errors_have_status_headers_and_the_shape_of_the_format() {
    for format in Format::ALL {
        let server = ModelServer::start();
        server.script(
            Reply::status(429)
                .header("retry-after", "7")
                .message("slow down"),
        );
        let answer = ask(&server, format, true);
        assert_eq!(answer.status, 429);
        assert!(answer.head.contains("retry-after: 7"));
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["error"]["message"], "slow down", "{format:?}");
    }
}

#[test]
fn an_error_event_ends_a_stream_without_a_finish() {
    for format in Format::ALL {
        let server = ModelServer::start();
        server.script(
            Reply::text("part")
                .error_event(json!({"message": "Overloaded", "type": "overloaded_error"})),
        );
        let answer = ask(&server, format, true);
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains("Overloaded"));
        for word in ["end_turn", "\"stop\"", "STOP", "response.completed"] {
            assert!(!answer.body.contains(word), "{format:?}: {}", answer.body);
        }
    }
}

#[test]
fn raw_answers_are_exactly_what_was_given() {
    let server = ModelServer::start();
    server
        .script(Reply::raw("data: x\n\n"))
        .script(Reply::empty())
        .script(Reply::html(502, "Bad Gateway"))
        .script(Reply::json(&json!([1, 2])))
        .script(Reply::status(400).with_json(&json!("just text")))
        .script(Reply::text("a").garbage("{not json"));
    let answers: Vec<Answer> = (0..6).map(|_| ask(&server, Format::Chat, true)).collect();
    assert_eq!(answers[0].body, "data: x\n\n");
    assert_eq!((answers[1].status, answers[1].body.as_str()), (200, ""));
    assert_eq!(answers[2].status, 502);
    assert!(
        answers[2].head.contains("text/html")
            && answers[2].body.contains("<title>Bad Gateway</title>")
    );
    assert_eq!(answers[3].body, "[1,2]");
    assert_eq!(
        (answers[4].status, answers[4].body.as_str()),
        (400, "\"just text\"")
    );
    assert!(answers[5].body.contains("data: {not json\n\n"));
    assert_eq!(server.unused_replies(), 0);
}

#[test]
fn lines_end_with_crlf_and_comments_come_between_events() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["a", "b"]).crlf().comments().split(3));
    let body = ask(&server, Format::Chat, true).body;
    assert!(body.starts_with(": keep-alive\r\n\r\ndata: {"), "{body}");
    assert!(!body.replace("\r\n", "").contains('\n'));
}

#[test]
fn a_stream_is_cut_by_fin_by_reset_or_by_a_proper_end() {
    let server = ModelServer::start();
    server.script(Reply::deltas(["a", "b", "c"]).cut_after(2));
    server.script(Reply::deltas(["a", "b", "c"]).end_after(2));
    server.script(Reply::deltas(["a", "b", "c"]).reset_after(2));
    let cut = ask(&server, Format::Chat, true);
    assert_eq!((cut.whole, cut.events().len()), (false, 2));
    let ended = ask(&server, Format::Chat, true);
    assert_eq!((ended.whole, ended.events().len()), (true, 2));
    let mut socket = TcpStream::connect(server.address()).unwrap();
    send(&mut socket, target(Format::Chat), &json!({"stream": true}));
    let error = receive(&mut socket).err().expect("a reset is an error");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn the_test_sets_the_pace() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::deltas(["a", "b"]).paced(&pace));
    let mut socket = TcpStream::connect(server.address()).unwrap();
    send(&mut socket, target(Format::Chat), &json!({"stream": true}));
    pace.allow(2);
    let mut seen = String::new();
    let mut buffer = [0; 512];
    while seen.matches("data: ").count() < 2 {
        let count = socket.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(seen.contains(r#""content":"a""#) && !seen.contains(r#""content":"b""#));
    pace.release();
    let mut rest = String::new();
    while !rest.ends_with("0\r\n\r\n") {
        let count = socket.read(&mut buffer).unwrap();
        rest.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(rest.contains(r#""content":"b""#));
}

#[test]
fn an_answer_may_fall_silent_without_an_end() {
    for (reply, expected) in [
        (Reply::deltas(["a", "b"]).hang_after(2), 2),
        (Reply::text("a").then_hold(), 5),
    ] {
        let server = ModelServer::start();
        server.script(reply);
        let mut socket = TcpStream::connect(server.address()).unwrap();
        send(&mut socket, target(Format::Chat), &json!({"stream": true}));
        let mut seen = String::new();
        let mut buffer = [0; 512];
        while seen.matches("data: ").count() < expected {
            let count = socket.read(&mut buffer).unwrap();
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        socket.set_nonblocking(true).unwrap();
        let rest = socket.read(&mut buffer);
        assert!(!matches!(rest, Ok(0)), "the connection was closed");
        assert!(!seen.ends_with("0\r\n\r\n"));
    }
}

#[tokio::test]
async fn requests_are_logged_and_leaving_is_seen() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::text("never").paced(&pace));
    let mut socket = TcpStream::connect(server.address()).unwrap();
    send(
        &mut socket,
        target(Format::Generate),
        &json!({"contents": []}),
    );
    let request = server.wait_request(0).await;
    assert_eq!(
        (request.method.as_str(), request.query.as_str()),
        ("POST", "alt=sse")
    );
    assert_eq!(request.header("X-Test"), Some("yes"));
    assert_eq!(request.json(), json!({"contents": []}));
    assert!(request.wants_stream());
    socket.shutdown(Shutdown::Both).unwrap();
    server.wait_closed(0).await;
}

#[test]
fn connections_are_kept_and_counted_and_models_are_listed() {
    let server = ModelServer::start();
    server
        .models(["small", "large"])
        .otherwise(Reply::text("again"));
    let mut socket = TcpStream::connect(server.address()).unwrap();
    for _ in 0..3 {
        send(&mut socket, target(Format::Chat), &json!({}));
        assert!(receive(&mut socket).unwrap().body.contains("again"));
    }
    write!(socket, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(receive(&mut socket).unwrap().body.contains("large"));
    assert_eq!((server.connections(), server.requests().len()), (1, 4));
}

#[test]
fn a_request_without_an_answer_is_told_so() {
    let server = ModelServer::start();
    let answer = ask(&server, Format::Chat, true);
    assert_eq!(answer.status, 500);
    assert!(answer.body.contains("no answer left"));
}

#[tokio::test]
async fn the_manual_clock_stands_still_while_a_socket_is_waited_for() {
    let server = ModelServer::start();
    let pace = Pace::stopped();
    server.script(Reply::text("late").paced(&pace));
    let clock = ManualClock::pause();
    let started = tokio::time::Instant::now();
    let address = server.address();
    let mut timer = tokio::spawn(tokio::time::sleep(Duration::from_mins(1)));
    let client = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        send(&mut socket, target(Format::Chat), &json!({"stream": true}));
        receive(&mut socket).unwrap().body
    });
    server.wait_request(0).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(!timer.is_finished());
    clock.advance(Duration::from_secs(61)).await;
    (&mut timer).await.unwrap();
    pace.release();
    assert!(client.await.unwrap().contains("late"));
}
