//! The local socket through which other programs read the status of the gateway and manage its outbox.
//!
//! A client writes one line of JSON, such as `{"do": "status"}`, and gets one line back.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_kernel::settings::OWNERS;
use bub_kernel::{Error, ErrorKind, ReplyId, Result};
use bub_tape::{Durability, fs::Fs};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
};

use crate::{
    gateway::{ChannelPhase, GatewayInner},
    journal::{Journal, JournalRecord, JournalState, lock, now},
    outbox::{Outbox, unknown_reply_error},
};

/// Name of the socket in the directory of the gateway.
const SOCKET_FILE: &str = "status.sock";
/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Timeout for a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of busy sessions in the status.
const MAX_LISTED_SESSIONS: usize = 50;

/// The open socket. Dropping it removes the file.
pub(crate) struct StatusSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens the socket, if the journal has a directory.
pub(crate) fn listen(inner: &Arc<GatewayInner>) -> Result<Option<StatusSocket>> {
    let Some(directory) = inner.options.journal.directory() else {
        return Ok(None);
    };
    let path = directory.join(SOCKET_FILE);
    // The lock of the journal guarantees that no other gateway uses the socket.
    let _ = std::fs::remove_file(&path);
    let listen_error = |error: std::io::Error| {
        Error::config(format!("cannot listen on {}: {error}", path.display()))
    };
    let listener = UnixListener::bind(&path).map_err(listen_error)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .map_err(listen_error)?;
    let inner = Arc::clone(inner);
    let task = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    drop(tokio::spawn(tokio::time::timeout(
                        REQUEST_TIMEOUT,
                        serve(Arc::clone(&inner), stream),
                    )));
                }
                // The process most likely has no free file descriptors.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(Some(StatusSocket { path, task }))
}

async fn serve(inner: Arc<GatewayInner>, stream: UnixStream) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(MAX_REQUEST_BYTES))
        .read_line(&mut line)
        .await?;
    let answer = match answer(&inner, &line).await {
        Ok(answer) => answer,
        Err(error) => json!({"error": error.to_value()}),
    };
    write.write_all(format!("{answer}\n").as_bytes()).await
}

async fn answer(inner: &Arc<GatewayInner>, line: &str) -> Result<Value> {
    let request: Value = serde_json::from_str(line)
        .map_err(|error| Error::invalid_input(format!("the request is not valid JSON: {error}")))?;
    let id = &reply_id(&request);
    match request.get("do").and_then(Value::as_str) {
        Some("status") => Ok(status(inner)),
        Some("outbox") => Ok(undelivered(&inner.journal.live())),
        Some("retry") => Outbox::retry(inner, id).await.map(|()| json!({"ok": true})),
        Some("drop") => Outbox::drop_reply(inner, id)
            .await
            .map(|()| json!({"ok": true})),
        _ => Err(Error::invalid_input(
            "unknown request; expected status, outbox, retry or drop",
        )),
    }
}

fn reply_id(request: &Value) -> ReplyId {
    let id = request.get("id").and_then(Value::as_str);
    ReplyId::from(id.unwrap_or_default())
}

fn status(inner: &GatewayInner) -> Value {
    let channels: Vec<Value> = inner
        .channels
        .iter()
        .map(|(name, entry)| {
            let state = lock(&entry.state).clone();
            let undelivered = inner.journal.live().undelivered(name);
            let receive_error = entry
                .channel
                .receive_error()
                .filter(|_| state.phase == ChannelPhase::Running);
            let receive_error = receive_error.map(|text| inner.redact(&text));
            let phase = if receive_error.is_some() {
                "degraded"
            } else {
                state.phase.name()
            };
            let access = entry.channel.access_summary();
            // `audience` is the key of the first release.
            json!({
                "name": name, "state": phase, "last_error": receive_error.or(state.last_error),
                "accepted": state.accepted, "undelivered": undelivered,
                "access": access, "audience": access,
            })
        })
        .collect();
    let mut loads = inner.lanes.loads();
    let running: usize = loads.iter().map(|(_, _, running)| running).sum();
    loads.retain(|(_, unfinished, running)| unfinished + running > 0);
    let busy = loads.len();
    loads.sort_unstable_by_key(|(_, unfinished, _)| std::cmp::Reverse(*unfinished));
    loads.truncate(MAX_LISTED_SESSIONS);
    let sessions: Vec<Value> = loads
        .into_iter()
        .map(|(session, unfinished, running)| json!({"id": session, "unfinished": unfinished, "running": running}))
        .collect();
    let (unfinished, outgoing, unclaimed, failed) = {
        let live = inner.journal.live();
        let stuck = live.outgoing().filter(|outgoing| outgoing.is_stuck);
        let (unclaimed, failed): (Vec<_>, Vec<_>) =
            stuck.partition(|outgoing| outgoing.reply.is_claimed);
        (
            live.inbounds().count(),
            live.outgoing().count(),
            unclaimed.len(),
            failed.len(),
        )
    };
    json!({
        "owners": inner.framework.settings().get(&OWNERS),
        "pid": std::process::id(),
        "process": process_usage(),
        "stopping": inner.drain.is_cancelled(),
        "channels": channels,
        "unfinished": unfinished,
        "running_turns": running,
        "busy_sessions": busy,
        "sessions": sessions,
        "undelivered": outgoing,
        "failed": failed,
        // The key of the first release.
        "given_up": failed,
        "unclaimed": unclaimed,
        "journal_backlog": inner.journal.backlog(),
    })
}

/// Returns the resource usage of the process. Values that only Linux provides are `null` elsewhere.
fn process_usage() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    let files = std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    json!({"memory_mb": memory.map(|kilobytes: u64| kilobytes / 1024), "files": files, "tasks": tasks})
}

fn undelivered(live: &JournalState) -> Value {
    let now = now();
    let replies = live.outgoing().map(|outgoing| {
        let state = match (outgoing.is_stuck, outgoing.attempt) {
            (true, _) if outgoing.reply.is_claimed => "unclaimed",
            (true, _) => "failed",
            (false, 0) => "queued",
            (false, _) => "retrying",
        };
        let text = outgoing.reply.envelope().content().chars().take(200).collect::<String>();
        json!({
            "id": outgoing.reply.id, "channel": outgoing.reply.channel, "chat": outgoing.reply.chat,
            "age_seconds": now.saturating_sub(outgoing.reply.at) / 1000, "attempts": outgoing.attempt,
            "state": state,
            "error": outgoing.error, "text": text,
        })
    });
    json!({"replies": replies.collect::<Vec<_>>()})
}

/// Sends a request to the gateway that runs in a directory. Returns `None` if no gateway runs there.
///
/// # Errors
///
/// Fails if the gateway does not respond in time, or with the error that it returns.
pub async fn send_request(directory: &Path, request: &Value) -> Result<Option<Value>> {
    let Ok(mut stream) = UnixStream::connect(directory.join(SOCKET_FILE)).await else {
        return Ok(None);
    };
    let exchange = async {
        stream.write_all(format!("{request}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let no_response_error = || Error::new(ErrorKind::Temporary, "the gateway does not respond");
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, exchange)
        .await
        .map_err(|_| no_response_error())?
        .map_err(|_| no_response_error())?;
    let answer: Value = serde_json::from_str(&answer).map_err(|_| no_response_error())?;
    match answer.get("error") {
        Some(error) => Err(Error::from_value(error)),
        None => Ok(Some(answer)),
    }
}

/// Lists, retries or drops undelivered replies of a gateway that is not running.
pub async fn edit_offline_outbox(
    fs: Arc<dyn Fs>,
    directory: &Path,
    durability: Durability,
    request: &Value,
) -> Result<Value> {
    let id = reply_id(request);
    let record = match request.get("do").and_then(Value::as_str) {
        Some("retry") => JournalRecord::Retry { id: id.clone() },
        Some("drop") => JournalRecord::Forgotten { id: id.clone() },
        _ => return Journal::peek(&*fs, directory).map(|live| undelivered(&live)),
    };
    let (journal, _) = Journal::open(fs, directory, durability)?;
    let is_known = journal.live().reply(&id).is_some();
    let outcome = if is_known {
        journal.append(record).await.map(|()| json!({"ok": true}))
    } else {
        Err(unknown_reply_error(&id))
    };
    journal.close().await;
    outcome
}
