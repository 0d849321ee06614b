//! Serves connections: reads requests and sends scripted answers.

use std::io;
use std::sync::Arc;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::ServerState;
use super::format::{Format, ScriptedAnswer, StreamFrame};
use super::http::{Reader, write_chunk, write_end, write_head};
use super::log::Request;
use super::reply::{Reply, ReplyBody, ReplyCut, ReplyTransport};

/// Serves one connection until it ends.
pub(super) async fn serve_connection(socket: TcpStream, shared: Arc<ServerState>) {
    let number = shared.log.record_connection();
    let _ = serve_requests(socket, &shared, number).await;
    shared.log.record_disconnect(number);
}

async fn serve_requests(
    mut socket: TcpStream,
    shared: &ServerState,
    number: usize,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = Reader::new(number);
    let reset = {
        let (mut input, mut output) = socket.split();
        loop {
            let Some(request) = reader.next_request(&mut input).await? else {
                return Ok(());
            };
            let index = shared.log.record_request(request.clone());
            let reply = shared.next_reply(&request);
            let on_sent = || shared.log.record_sent_part(index);
            let cut = tokio::select! {
                cut = write_reply(&mut output, &request, &reply, on_sent) => cut?,
                () = wait_disconnect(&input) => return Ok(()),
            };
            if let Some(cut) = cut {
                break cut == ReplyCut::Reset;
            }
        }
    };
    if reset {
        socket.set_zero_linger()?;
    }
    Ok(())
}

/// Waits until the client closes the connection. Pipelined input does not count.
async fn wait_disconnect(input: &ReadHalf<'_>) {
    let mut byte = [0];
    if matches!(input.as_ref().peek(&mut byte).await, Ok(1..)) {
        std::future::pending::<()>().await;
    }
}

/// Writes one answer, and calls `on_sent` after the head and after each event. Returns how to break the connection, if
/// requested.
async fn write_reply(
    output: &mut WriteHalf<'_>,
    request: &Request,
    reply: &Reply,
    on_sent: impl Fn(),
) -> io::Result<Option<ReplyCut>> {
    let (content_type, events) = body_events(request, reply);
    write_head(output, reply.status, &content_type, &reply.headers).await?;
    on_sent();
    let ReplyTransport {
        pace, cut, split, ..
    } = &reply.delivery;
    for (index, event) in events.iter().enumerate() {
        if let Some((_, how)) = cut.filter(|(after, _)| *after == index) {
            return cut_reply(output, how).await;
        }
        if let Some(pace) = pace {
            pace.wait_for_permit().await;
        }
        for part in event.chunks(split.unwrap_or(usize::MAX)) {
            write_chunk(output, part).await?;
        }
        on_sent();
    }
    match cut {
        Some((_, how)) => cut_reply(output, *how).await,
        None => write_end(output).await.map(|()| None),
    }
}

async fn cut_reply(output: &mut WriteHalf<'_>, how: ReplyCut) -> io::Result<Option<ReplyCut>> {
    match how {
        ReplyCut::End => write_end(output).await.map(|()| None),
        ReplyCut::Hold => std::future::pending().await,
        ReplyCut::Fin | ReplyCut::Reset => Ok(Some(how)),
    }
}

/// Returns the body in pieces, one per event, for pacing and cutting.
fn body_events(request: &Request, reply: &Reply) -> (String, Vec<Vec<u8>>) {
    let format = request.format().unwrap_or(Format::Chat);
    let json = "application/json".to_owned();
    match &reply.body {
        ReplyBody::Raw {
            content_type,
            bytes,
        } => (content_type.clone(), vec![bytes.clone()]),
        ReplyBody::Refusal(message) => (
            json,
            vec![
                format
                    .error_body(reply.status, message)
                    .to_string()
                    .into_bytes(),
            ],
        ),
        ReplyBody::Parts(parts) => {
            let model = request
                .json()
                .get("model")
                .and_then(Value::as_str)
                .unwrap_or("scripted")
                .to_owned();
            let script = ScriptedAnswer::new(parts, model);
            if !request.wants_stream() {
                return (
                    json,
                    vec![format.full_response(&script).to_string().into_bytes()],
                );
            }
            let frames = format.frames(&script);
            (
                "text/event-stream".to_owned(),
                frames
                    .iter()
                    .map(|frame| encode_frame(frame, &reply.delivery))
                    .collect(),
            )
        }
    }
}

fn encode_frame(frame: &StreamFrame, delivery: &ReplyTransport) -> Vec<u8> {
    let newline = if delivery.crlf { "\r\n" } else { "\n" };
    let comment = if delivery.comments {
        format!(": keep-alive{newline}{newline}")
    } else {
        String::new()
    };
    (comment + &frame.encode(newline)).into_bytes()
}
