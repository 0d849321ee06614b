//! The threads that read and write the lines of a peer.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    sync::{Arc, atomic::Ordering, mpsc as blocking},
};

use super::{MAX_LINE_BYTES, PROCESS_ENDED_TEXT, Peer, RequestHandler};
use crate::{rpc_message, stderr::LogRateLimiter};

/// Number of invalid lines tolerated before the connection is closed.
const MAX_INVALID_LINES: u32 = 100;
/// Size in bytes at which the writing thread stops combining queued lines into one write. Also the size of the read
/// buffer.
const WRITE_BATCH_BYTES: usize = 64 * 1024;

/// Writes queued lines until the connection is closed.
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
            return peer.close("the process closed its input; keep stdin open until `shutdown`");
        }
        peer.unwritten.fetch_sub(batch.len(), Ordering::Relaxed);
    }
}

/// Reads lines and passes their messages to the peer until the connection ends. Returns why it ended.
pub(crate) fn read_lines(
    reader: impl Read,
    peer: &Arc<Peer>,
    handler: &dyn RequestHandler,
) -> String {
    let mut reader = BufReader::with_capacity(WRITE_BATCH_BYTES, reader);
    let (mut line, mut invalid_lines) = (Vec::new(), 0);
    let mut limiter = LogRateLimiter::for_invalid_lines();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(MAX_LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
        {
            Ok(0) => return PROCESS_ENDED_TEXT.to_owned(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return PROCESS_ENDED_TEXT.to_owned();
            }
            Ok(_) if line.len() > MAX_LINE_BYTES => {
                return format!(
                    "the process sent a line longer than {MAX_LINE_BYTES} bytes; send shorter messages"
                );
            }
            Ok(_) => {}
            Err(error) => return format!("cannot read from the process: {error}; see the log"),
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let is_message = match rpc_message::parse_line(&line) {
            Ok(message) => peer.handle_message(message, line.len(), handler),
            Err(error) => {
                peer.handle_invalid_line(&rpc_message::parse_partial(&line), &error.to_string());
                false
            }
        };
        if !is_message {
            invalid_lines += 1;
            if limiter.allow_line(&peer.name) {
                let excerpt =
                    String::from_utf8_lossy(line.get(..line.len().min(200)).unwrap_or_default());
                let (plugin, line) = (&peer.name, excerpt.trim_end());
                tracing::warn!(%plugin, line, "plugin.invalid_line");
            }
        }
        if invalid_lines > MAX_INVALID_LINES {
            return format!(
                "the process sent more than {MAX_INVALID_LINES} invalid lines; write only protocol messages to stdout"
            );
        }
        if peer.is_closed() {
            return peer.close_reason();
        }
    }
}
