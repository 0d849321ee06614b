//! The threads that read and write the lines of a peer.

use std::{
    io::{BufRead, BufReader, Read, Write},
    sync::{Arc, atomic::Ordering, mpsc as blocking},
};

use bub_kernel::Error;
use serde_json::Value;

use super::{MAX_LINE_BYTES, Peer, RequestHandler};
use crate::{rpc_message, stderr::LogRateLimiter};

/// So many lines may be no messages.
const MAX_INVALID_LINES: u32 = 100;
/// Writes are joined up to this size.
const WRITE_BATCH_BYTES: usize = 64 * 1024;

/// Has a host that waits for some answers read what a plugin might write, and refuse what it asks for; returns why the
/// conversation ended. For those who try any bytes.
#[doc(hidden)]
pub fn read_for_fuzzing(bytes: &[u8]) -> String {
    struct RejectingHandler;
    impl RequestHandler for RejectingHandler {
        fn request(&self, peer: &Arc<Peer>, id: Value, method: &str, _params: Value) {
            peer.respond(&id, Err(Error::not_found(method)));
        }
        fn notification(&self, _method: &str, _params: &Value) {}
        fn closed(&self, _peer: &Peer, _why: &str) {}
    }
    let (outgoing, _lines) = blocking::channel();
    let peer = Arc::new(Peer::new(outgoing, "fuzz"));
    let _asked: Vec<_> = (0..3)
        .map(|credits| peer.ask("hook", &Value::Null, credits))
        .collect();
    let cause = read_lines(bytes, &peer, &RejectingHandler);
    peer.close(&cause);
    cause
}

pub(super) fn write_lines(
    mut writer: impl Write,
    lines: &blocking::Receiver<Vec<u8>>,
    peer: &Peer,
) {
    while let Ok(mut batch) = lines.recv() {
        while batch.len() < WRITE_BATCH_BYTES
            && let Ok(mut more) = lines.try_recv()
        {
            batch.append(&mut more);
        }
        if writer
            .write_all(&batch)
            .and_then(|()| writer.flush())
            .is_err()
        {
            return peer.close("it takes no more messages");
        }
        peer.unwritten.fetch_sub(batch.len(), Ordering::Relaxed);
    }
}

/// Reads until the end, and says what that was.
pub(super) fn read_lines(
    reader: impl Read,
    peer: &Arc<Peer>,
    handler: &dyn RequestHandler,
) -> String {
    let mut reader = BufReader::with_capacity(WRITE_BATCH_BYTES, reader);
    let (mut line, mut garbage) = (Vec::new(), 0);
    let mut meter = LogRateLimiter::of_garbage();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(MAX_LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => return "it ended".to_owned(),
            Ok(_) if line.len() > MAX_LINE_BYTES => {
                return format!("it sent a line longer than {MAX_LINE_BYTES} bytes");
            }
            Ok(_) => {}
            Err(error) => return format!("it cannot be read: {error}"),
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let is_message = match rpc_message::read(&line) {
            Ok(message) => peer.handle_message(message, line.len(), handler),
            Err(error) => {
                peer.handle_unreadable(&rpc_message::read_partial(&line), &error.to_string());
                false
            }
        };
        if !is_message {
            garbage += 1;
            if meter.allow(&peer.name) {
                let shown =
                    String::from_utf8_lossy(line.get(..line.len().min(200)).unwrap_or_default());
                let (plugin, line) = (&peer.name, shown.trim_end());
                tracing::warn!(%plugin, line, "plugin.invalid_line");
            }
        }
        if garbage > MAX_INVALID_LINES {
            return format!("more than {MAX_INVALID_LINES} of its lines were no messages");
        }
        if peer.is_closed() {
            return peer.close_reason();
        }
    }
}
