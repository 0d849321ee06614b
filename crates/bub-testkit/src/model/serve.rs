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
pub(super) async fn connection(socket: TcpStream, shared: Arc<ServerState>) {
    let number = shared.log.opened();
    let _ = talk(socket, &shared, number).await;
    shared.log.record_disconnect(number);
}

async fn talk(mut socket: TcpStream, shared: &ServerState, number: usize) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = Reader::new(number);
    let reset = {
        let (mut input, mut output) = socket.split();
        loop {
            let Some(request) = reader.next(&mut input).await? else {
                return Ok(());
            };
            shared.log.add(request.clone());
            let reply = shared.next_reply(&request);
            let cut = tokio::select! {
                cut = answer(&mut output, &request, &reply) => cut?,
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

/// Writes one answer; returns how to break the connection, if requested.
async fn answer(
    output: &mut WriteHalf<'_>,
    request: &Request,
    reply: &Reply,
) -> io::Result<Option<ReplyCut>> {
    let (content_type, pieces) = pieces(request, reply);
    write_head(output, reply.status, &content_type, &reply.headers).await?;
    let ReplyTransport {
        pace, cut, split, ..
    } = &reply.delivery;
    for (index, piece) in pieces.iter().enumerate() {
        if let Some((_, how)) = cut.filter(|(after, _)| *after == index) {
            return finish(output, how).await;
        }
        if let Some(pace) = pace {
            pace.wait().await;
        }
        for part in piece.chunks(split.unwrap_or(usize::MAX)) {
            write_chunk(output, part).await?;
        }
    }
    match cut {
        Some((_, how)) => finish(output, *how).await,
        None => write_end(output).await.map(|()| None),
    }
}

async fn finish(output: &mut WriteHalf<'_>, how: ReplyCut) -> io::Result<Option<ReplyCut>> {
    match how {
        ReplyCut::End => write_end(output).await.map(|()| None),
        ReplyCut::Hold => std::future::pending().await,
        ReplyCut::Fin | ReplyCut::Reset => Ok(Some(how)),
    }
}

/// Returns the body in pieces, one per event, for pacing and cutting.
fn pieces(request: &Request, reply: &Reply) -> (String, Vec<Vec<u8>>) {
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
                    .refusal(reply.status, message)
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
            let said = ScriptedAnswer::new(parts, model);
            if !request.wants_stream() {
                return (
                    json,
                    vec![format.full_response(&said).to_string().into_bytes()],
                );
            }
            let frames = format.frames(&said);
            (
                "text/event-stream".to_owned(),
                frames
                    .iter()
                    .map(|frame| encode(frame, &reply.delivery))
                    .collect(),
            )
        }
    }
}

fn encode(frame: &StreamFrame, delivery: &ReplyTransport) -> Vec<u8> {
    let newline = if delivery.crlf { "\r\n" } else { "\n" };
    let comment = if delivery.comments {
        format!(": keep-alive{newline}{newline}")
    } else {
        String::new()
    };
    (comment + &frame.encode(newline)).into_bytes()
}
