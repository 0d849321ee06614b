//! Serves connections: reads calls and sends responses and faults.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns `null`"
)]

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{
    BotServerState, Fault, TOKEN,
    chats::{ApiCall, ApiResult, number},
    params,
};
use crate::model::{http::Reader, log::Request};

/// Serves one connection until it ends.
pub(super) async fn connection(socket: TcpStream, shared: Arc<BotServerState>) {
    shared.connections.fetch_add(1, Ordering::Relaxed);
    drop(talk(socket, &shared).await);
    shared.connections.fetch_sub(1, Ordering::Relaxed);
    shared.changed();
}

async fn talk(mut socket: TcpStream, shared: &BotServerState) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = Reader::new(0);
    let (mut input, mut output) = socket.split();
    while let Some(request) = reader.next(&mut input).await? {
        let is_open = tokio::select! {
            answered = answer(&mut output, &request, shared) => answered?,
            () = wait_disconnect(&input) => return Ok(()),
        };
        if !is_open {
            return Ok(());
        }
    }
    Ok(())
}

/// Waits until the client closes the connection.
async fn wait_disconnect(input: &ReadHalf<'_>) {
    let mut byte = [0];
    if matches!(input.as_ref().peek(&mut byte).await, Ok(1..)) {
        std::future::pending::<()>().await;
    }
}

/// Answers a request; returns `false` if the connection must be closed.
async fn answer(
    output: &mut WriteHalf<'_>,
    request: &Request,
    shared: &BotServerState,
) -> io::Result<bool> {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    // A request to a proxy contains the server name as well.
    let path = request
        .path
        .strip_prefix("http://")
        .and_then(|rest| Some(rest.split_at(rest.find('/')?).1));
    let path = path.unwrap_or(&request.path);
    if let Some(path) = path.strip_prefix(&format!("/file/bot{TOKEN}/")) {
        return send_file(output, path, shared).await;
    }
    let Some((token, method)) = path
        .strip_prefix("/bot")
        .and_then(|path| path.split_once('/'))
    else {
        return write(output, 404, &refusal(404, "Not Found")).await;
    };
    if token != TOKEN || shared.chats().is_revoked {
        let (code, text) = if token.contains(':') {
            (401, "Unauthorized")
        } else {
            (404, "Not Found")
        };
        return write(output, code, &refusal(code, text)).await;
    }
    let params = match params::read(request) {
        Ok(params) => params,
        Err(cause) => {
            shared.chats().violations.push(format!("{method}: {cause}"));
            return write(
                output,
                400,
                &refusal(400, "Bad Request: can't parse the request"),
            )
            .await;
        }
    };
    if let Some(spec) = &shared.spec {
        let wrong = spec.check(method, &params);
        shared.chats().violations.extend(wrong);
    }
    let fault = shared.next_fault(method, &params);
    let note = |is_done| {
        let call = ApiCall {
            method: method.to_owned(),
            params: params.clone(),
            is_done,
            at: Instant::now(),
        };
        shared.chats().calls.push(call);
        shared.changed();
    };
    match fault {
        Some(Fault::Refuse(code, text)) => {
            note(false);
            return write(output, code, &refusal(code, text)).await;
        }
        Some(Fault::Flood(seconds)) => {
            note(false);
            let mut body = refusal(429, &format!("Too Many Requests: retry after {seconds}"));
            body["parameters"] = json!({"retry_after": seconds});
            return write(output, 429, &body).await;
        }
        Some(Fault::Moved(chat)) => {
            note(false);
            let mut body = refusal(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
            );
            body["parameters"] = json!({"migrate_to_chat_id": chat});
            return write(output, 400, &body).await;
        }
        Some(Fault::Page(status)) => {
            note(false);
            return write_bytes(output, status, "text/html", b"<html>bad gateway</html>").await;
        }
        Some(Fault::Cut) => {
            note(false);
            return Ok(false);
        }
        Some(Fault::Hang) => {
            note(false);
            return std::future::pending().await;
        }
        Some(Fault::CutAfter | Fault::Slow(_)) | None => {}
    }
    if method == "getUpdates" {
        note(true);
        let outcome = poll(&params, shared).await;
        return reply(output, outcome).await;
    }
    let outcome = shared.chats().act(method, &params);
    note(outcome.is_ok());
    match fault {
        Some(Fault::CutAfter) => return Ok(false),
        Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
        _ => {}
    }
    reply(output, outcome).await
}

/// Holds a poll until an update arrives, its time is over, or a newer poll comes.
async fn poll(params: &Value, shared: &BotServerState) -> ApiResult {
    let offset = number(&params["offset"]).unwrap_or_default();
    let timeout = u64::try_from(number(&params["timeout"]).unwrap_or_default()).unwrap_or_default();
    let mut changes = shared.changes.subscribe();
    let own = {
        let mut chats = shared.chats();
        if !chats.webhook.is_empty() {
            let text = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
            return Err((409, text.to_owned()));
        }
        chats.poll += 1;
        chats.poll
    };
    shared.changed();
    let until = tokio::time::Instant::now() + Duration::from_secs(timeout);
    loop {
        let (updates, newest, confirmed) = {
            let mut chats = shared.chats();
            let (newest, before) = (chats.poll, chats.updates.len());
            let updates = if newest == own {
                chats.take_updates(offset)
            } else {
                Vec::new()
            };
            (updates, newest, before - chats.updates.len())
        };
        if newest != own {
            let text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
            return Err((409, text.to_owned()));
        }
        if confirmed > 0 {
            shared.changed();
        }
        if !updates.is_empty() || timeout == 0 {
            return Ok(updates.into());
        }
        if tokio::time::timeout_at(until, changes.changed())
            .await
            .is_err()
        {
            return Ok(json!([]));
        }
    }
}

async fn send_file(
    output: &mut WriteHalf<'_>,
    path: &str,
    shared: &BotServerState,
) -> io::Result<bool> {
    let path = &decoded(path);
    let fault = shared.next_fault("file", &json!({"path": path}));
    let found = shared
        .chats()
        .files
        .values()
        .find(|(known, _)| known == path)
        .map(|(_, bytes)| bytes.clone());
    let call = ApiCall {
        method: "file".to_owned(),
        params: json!({"path": path}),
        is_done: true,
        at: Instant::now(),
    };
    shared.chats().calls.push(call);
    shared.changed();
    match (fault, found) {
        (Some(Fault::Cut | Fault::CutAfter), _) => Ok(false),
        (Some(Fault::Hang), _) => std::future::pending().await,
        (Some(_), _) => write(output, 500, &refusal(500, "Internal Server Error")).await,
        (None, Some(bytes)) => write_bytes(output, 200, "application/octet-stream", &bytes).await,
        (None, None) => write(output, 404, &refusal(404, "Not Found")).await,
    }
}

/// Decodes percent-encoding in a path.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn reply(output: &mut WriteHalf<'_>, outcome: ApiResult) -> io::Result<bool> {
    match outcome {
        Ok(result) => write(output, 200, &json!({"ok": true, "result": result})).await,
        Err((code, text)) => write(output, code, &refusal(code, &text)).await,
    }
}

fn refusal(code: u16, text: &str) -> Value {
    json!({"ok": false, "error_code": code, "description": text})
}

async fn write(output: &mut WriteHalf<'_>, status: u16, body: &Value) -> io::Result<bool> {
    write_bytes(
        output,
        status,
        "application/json",
        body.to_string().as_bytes(),
    )
    .await
}

async fn write_bytes(
    output: &mut WriteHalf<'_>,
    status: u16,
    kind: &str,
    body: &[u8],
) -> io::Result<bool> {
    let head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    output.write_all(head.as_bytes()).await?;
    output.write_all(body).await?;
    Ok(true)
}
