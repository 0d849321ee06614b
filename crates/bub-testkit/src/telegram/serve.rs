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
    chats::{ApiCall, ApiResult, to_number},
    params,
};
use crate::model::{http::Reader, log::Request};

/// Serves one connection until it ends.
pub(super) async fn serve_connection(socket: TcpStream, shared: Arc<BotServerState>) {
    shared.connections.fetch_add(1, Ordering::Relaxed);
    drop(serve_requests(socket, &shared).await);
    shared.connections.fetch_sub(1, Ordering::Relaxed);
    shared.notify_waiters();
}

async fn serve_requests(mut socket: TcpStream, shared: &BotServerState) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = Reader::new(0);
    let (mut input, mut output) = socket.split();
    while let Some(request) = reader.next_request(&mut input).await? {
        let is_open = tokio::select! {
            answered = write_response(&mut output, &request, shared) => answered?,
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
async fn write_response(
    output: &mut WriteHalf<'_>,
    request: &Request,
    shared: &BotServerState,
) -> io::Result<bool> {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let (base_path, path) = split_base_path(&request.path);
    if let Some(base_path) = base_path.strip_suffix("/file")
        && let Some(file) = path.strip_prefix(&format!("/bot{TOKEN}/"))
    {
        return send_file(output, base_path, file, shared).await;
    }
    let Some((token, method)) = path
        .strip_prefix("/bot")
        .and_then(|path| path.split_once('/'))
    else {
        return write_json(output, 404, &error_body(404, "Not Found")).await;
    };
    if token != TOKEN || shared.chats().is_revoked {
        let (code, text) = if token.contains(':') {
            (401, "Unauthorized")
        } else {
            (404, "Not Found")
        };
        return write_json(output, code, &error_body(code, text)).await;
    }
    let params = match params::parse_params(request) {
        Ok(params) => params,
        Err(cause) => {
            shared.chats().violations.push(format!("{method}: {cause}"));
            return write_json(
                output,
                400,
                &error_body(400, "Bad Request: can't parse the request"),
            )
            .await;
        }
    };
    if let Some(spec) = &shared.spec {
        let violations = spec.check(method, &params);
        shared.chats().violations.extend(violations);
    }
    let fault = shared.next_fault(method, &params);
    let call = |is_done| ApiCall {
        method: method.to_owned(),
        params: params.clone(),
        is_done,
        at: Instant::now(),
        base_path: base_path.to_owned(),
    };
    let record_call = |is_done| {
        shared.chats().calls.push(call(is_done));
        shared.notify_waiters();
    };
    match fault {
        Some(Fault::Refuse(code, text)) => {
            record_call(false);
            return write_json(output, code, &error_body(code, text)).await;
        }
        Some(Fault::Flood(seconds)) => {
            record_call(false);
            let mut body = error_body(429, &format!("Too Many Requests: retry after {seconds}"));
            body["parameters"] = json!({"retry_after": seconds});
            return write_json(output, 429, &body).await;
        }
        Some(Fault::Moved(chat)) => {
            record_call(false);
            let mut body = error_body(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
            );
            body["parameters"] = json!({"migrate_to_chat_id": chat});
            return write_json(output, 400, &body).await;
        }
        Some(Fault::Page(status)) => {
            record_call(false);
            return write_bytes(output, status, "text/html", b"<html>bad gateway</html>").await;
        }
        Some(Fault::Cut) => {
            record_call(false);
            return Ok(false);
        }
        Some(Fault::Hang) => {
            record_call(false);
            return std::future::pending().await;
        }
        Some(Fault::CutAfter | Fault::Slow(_)) | None => {}
    }
    if method == "getUpdates" {
        record_call(true);
        let outcome = hold_poll(&params, shared).await;
        return write_result(output, outcome).await;
    }
    let outcome = execute(call(true), shared);
    match fault {
        Some(Fault::CutAfter) => return Ok(false),
        Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
        _ => {}
    }
    write_result(output, outcome).await
}

/// Executes and records a call. A test that sees its effect also finds the call.
fn execute(mut call: ApiCall, shared: &BotServerState) -> ApiResult {
    let mut chats = shared.chats();
    let outcome = chats.execute(&call.method, &call.params);
    call.is_done = outcome.is_ok();
    chats.calls.push(call);
    drop(chats);
    shared.notify_waiters();
    outcome
}

/// Splits the target of a request before `/bot`, because the base URL of the client may contain a path.
fn split_base_path(target: &str) -> (&str, &str) {
    // A request to a proxy contains the server name as well.
    let path = target
        .strip_prefix("http://")
        .and_then(|target| Some(target.split_at(target.find('/')?).1))
        .unwrap_or(target);
    path.split_at(path.find("/bot").unwrap_or_default())
}

/// Holds a poll until an update arrives, its time is over, or a newer poll comes.
async fn hold_poll(params: &Value, shared: &BotServerState) -> ApiResult {
    let offset = to_number(&params["offset"]).unwrap_or_default();
    let timeout =
        u64::try_from(to_number(&params["timeout"]).unwrap_or_default()).unwrap_or_default();
    let mut changes = shared.changes.subscribe();
    let poll_number = {
        let mut chats = shared.chats();
        if !chats.webhook.is_empty() {
            let text = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
            return Err((409, text.to_owned()));
        }
        chats.poll += 1;
        chats.poll
    };
    shared.notify_waiters();
    let until = tokio::time::Instant::now() + Duration::from_secs(timeout);
    loop {
        let (updates, newest, confirmed) = {
            let mut chats = shared.chats();
            let (newest, before) = (chats.poll, chats.updates.len());
            let updates = if newest == poll_number {
                chats.take_updates(offset)
            } else {
                Vec::new()
            };
            (updates, newest, before - chats.updates.len())
        };
        if newest != poll_number {
            let text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
            return Err((409, text.to_owned()));
        }
        if confirmed > 0 {
            shared.notify_waiters();
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
    base_path: &str,
    path: &str,
    shared: &BotServerState,
) -> io::Result<bool> {
    let path = &decode_path(path);
    let fault = shared.next_fault("file", &json!({"path": path}));
    let file = shared
        .chats()
        .files
        .values()
        .find(|(other, _)| other == path)
        .map(|(_, bytes)| bytes.clone());
    let call = ApiCall {
        method: "file".to_owned(),
        params: json!({"path": path}),
        is_done: true,
        at: Instant::now(),
        base_path: base_path.to_owned(),
    };
    shared.chats().calls.push(call);
    shared.notify_waiters();
    match (fault, file) {
        (Some(Fault::Cut | Fault::CutAfter), _) => Ok(false),
        (Some(Fault::Hang), _) => std::future::pending().await,
        (Some(_), _) => write_json(output, 500, &error_body(500, "Internal Server Error")).await,
        (None, Some(bytes)) => write_bytes(output, 200, "application/octet-stream", &bytes).await,
        (None, None) => write_json(output, 404, &error_body(404, "Not Found")).await,
    }
}

/// Decodes percent-encoding in a path.
fn decode_path(path: &str) -> String {
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

async fn write_result(output: &mut WriteHalf<'_>, outcome: ApiResult) -> io::Result<bool> {
    match outcome {
        Ok(result) => write_json(output, 200, &json!({"ok": true, "result": result})).await,
        Err((code, text)) => write_json(output, code, &error_body(code, &text)).await,
    }
}

fn error_body(code: u16, text: &str) -> Value {
    json!({"ok": false, "error_code": code, "description": text})
}

async fn write_json(output: &mut WriteHalf<'_>, status: u16, body: &Value) -> io::Result<bool> {
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
