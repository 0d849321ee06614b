//! The local socket through which other programs read the status of the gateway and manage its outbox.
//!
//! A client writes one line of JSON, such as `{"do": "status"}`, and gets one line of JSON back.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
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
    gateway::GatewayInner,
    journal::{Journal, JournalRecord, JournalState, now_ms},
    outbox::{Outbox, unknown_reply_error},
    supervision::RunPhase,
};

/// Name of the socket in the directory of the gateway.
const SOCKET_FILE: &str = "status.sock";
/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Timeout for a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of busy sessions in the status.
const MAX_LISTED_SESSIONS: usize = 50;

/// The open status socket. Dropping it closes the socket and removes its file.
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

/// Opens the status socket in the directory of the journal. Returns `None` if the journal is in memory.
pub(crate) fn open_socket(inner: &Arc<GatewayInner>) -> Result<Option<StatusSocket>> {
    let Some(directory) = inner.options.journal.directory() else {
        return Ok(None);
    };
    let path = directory.join(SOCKET_FILE);
    // The lock of the journal guarantees that no other gateway uses the socket.
    let _ = std::fs::remove_file(&path);
    let listen_error = |error: std::io::Error| {
        Error::config(format!(
            "cannot open the status socket `{}`: {error}; check the permissions of its directory, or use a shorter path with BUB_HOME",
            path.display()
        ))
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
                        serve_connection(Arc::clone(&inner), stream),
                    )));
                }
                // The process most likely has no free file descriptors.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(Some(StatusSocket { path, task }))
}

async fn serve_connection(inner: Arc<GatewayInner>, stream: UnixStream) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(MAX_REQUEST_BYTES))
        .read_line(&mut line)
        .await?;
    let answer = match handle_request(&inner, &line).await {
        Ok(answer) => answer,
        Err(error) => json!({"error": error.to_value()}),
    };
    write.write_all(format!("{answer}\n").as_bytes()).await
}

async fn handle_request(inner: &Arc<GatewayInner>, line: &str) -> Result<Value> {
    let request: Value = serde_json::from_str(line).map_err(|error| {
        Error::invalid_input(format!("invalid request: not valid JSON: {error}"))
    })?;
    let id = &parse_reply_id(&request);
    match request.get("do").and_then(Value::as_str) {
        Some("status") => return Ok(status_report(inner)),
        Some("outbox") => return Ok(undelivered_report(&inner.journal.lock_state())),
        Some("retry") => Outbox::retry_reply(inner, id).await?,
        Some("drop") => Outbox::drop_reply(inner, id).await?,
        _ => {
            return Err(Error::invalid_input(
                "unknown request; expected `do` to be `status`, `outbox`, `retry` or `drop`",
            ));
        }
    }
    Ok(json!({"ok": true}))
}

fn parse_reply_id(request: &Value) -> ReplyId {
    let id = request.get("id").and_then(Value::as_str);
    ReplyId::from(id.unwrap_or_default())
}

fn status_report(inner: &GatewayInner) -> Value {
    let channels: Vec<Value> = inner
        .channels
        .iter()
        .map(|(name, entry)| {
            let state = entry.state.lock().clone();
            let undelivered = inner.journal.lock_state().undelivered_count(name);
            let receive_error = entry
                .channel
                .receive_error()
                .filter(|_| state.phase == RunPhase::Running);
            let receive_error = receive_error.map(|text| inner.redact(&text));
            let phase = if receive_error.is_some() {
                "degraded"
            } else {
                state.phase.into()
            };
            let access = entry.channel.access_summary();
            // The first release used the key `audience` instead of `access`.
            json!({
                "name": name, "state": phase, "last_error": receive_error.or(state.last_error),
                "accepted": entry.accepted.load(Ordering::Relaxed), "undelivered": undelivered,
                "access": access, "audience": access,
            })
        })
        .collect();
    let services = inner.services.iter().map(|(name, entry)| {
        let state = entry.state.lock().clone();
        json!({"name": name, "state": <&str>::from(state.phase), "last_error": state.last_error})
    });
    let services: Vec<Value> = services.collect();
    let mut loads = inner.lanes.session_loads();
    let running: usize = loads.iter().map(|(_, _, running)| running).sum();
    loads.retain(|(_, unfinished, running)| unfinished + running > 0);
    let busy = loads.len();
    loads.sort_unstable_by_key(|(_, unfinished, _)| std::cmp::Reverse(*unfinished));
    loads.truncate(MAX_LISTED_SESSIONS);
    let sessions: Vec<Value> = loads
        .into_iter()
        .map(|(session, unfinished, running)| json!({"id": session, "unfinished": unfinished, "running": running}))
        .collect();
    let live = inner.journal.lock_state();
    let stuck = live
        .undelivered_replies()
        .filter(|outgoing| outgoing.is_stuck);
    let (unclaimed, failed): (Vec<_>, Vec<_>) =
        stuck.partition(|outgoing| outgoing.reply.is_claimed);
    json!({
        "owners": inner.framework.settings().get(&OWNERS),
        "pid": std::process::id(),
        "workspace": inner.framework.workspace(),
        "process": process_usage(),
        "stopping": inner.drain.is_cancelled(),
        "channels": channels,
        "services": services,
        "unfinished": live.unfinished_messages().count(),
        "running_turns": running,
        "busy_sessions": busy,
        "sessions": sessions,
        "undelivered": live.undelivered_replies().count(),
        "failed": failed.len(),
        // The first release used this key instead of `failed`.
        "given_up": failed.len(),
        "unclaimed": unclaimed.len(),
        "journal_backlog": inner.journal.queued_count(),
    })
}

/// Returns the resource usage of the process. Values that only Linux provides are `null` elsewhere.
fn process_usage() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|size| size.split_whitespace().next()?.parse().ok());
    let files = std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    json!({"memory_mb": memory.map(|kilobytes: u64| kilobytes / 1024), "files": files, "tasks": tasks})
}

fn undelivered_report(live: &JournalState) -> Value {
    let now = now_ms();
    let replies = live.undelivered_replies().map(|outgoing| {
        let state = match (outgoing.is_stuck, outgoing.attempt) {
            (true, _) if outgoing.reply.is_claimed => "unclaimed",
            (true, _) => "failed",
            (false, 0) => "queued",
            (false, _) => "retrying",
        };
        let text = outgoing.reply.to_envelope().content().chars().take(200).collect::<String>();
        json!({
            "id": outgoing.reply.id, "channel": outgoing.reply.channel, "chat": outgoing.reply.chat,
            "age_seconds": now.saturating_sub(outgoing.reply.at) / 1000, "attempts": outgoing.attempt,
            "state": state,
            "error": outgoing.error, "text": text,
        })
    });
    json!({"replies": replies.collect::<Vec<_>>()})
}

/// Sends a request to the gateway that runs in a directory. Returns `None` if no gateway runs in it.
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
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
    let answer = answer.ok().and_then(std::io::Result::ok);
    let answer = answer.and_then(|answer| serde_json::from_str::<Value>(&answer).ok());
    let answer = answer.ok_or_else(|| {
        Error::new(
            ErrorKind::Temporary,
            "gateway does not respond; try again or restart it",
        )
    })?;
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
    let id = parse_reply_id(request);
    let record = match request.get("do").and_then(Value::as_str) {
        Some("retry") => JournalRecord::Retry { id: id.clone() },
        Some("drop") => JournalRecord::Forgotten { id: id.clone() },
        _ => return Journal::read_state(&*fs, directory).map(|live| undelivered_report(&live)),
    };
    let (journal, _) = Journal::open(fs, directory, durability)?;
    let is_known = journal.lock_state().undelivered_reply(&id).is_some();
    let outcome = if is_known {
        journal.append(record).await.map(|()| json!({"ok": true}))
    } else {
        Err(unknown_reply_error(&id))
    };
    journal.close().await;
    outcome
}
