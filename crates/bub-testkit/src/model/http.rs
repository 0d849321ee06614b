//! A minimal HTTP/1.1 server for well-behaved clients.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::log::Request;

/// Maximum size of a request, to stop a faulty client.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// Reads requests from one connection.
pub(crate) struct Reader {
    buffer: Vec<u8>,
    connection: usize,
}

impl Reader {
    pub(crate) fn new(connection: usize) -> Self {
        Self {
            buffer: Vec::new(),
            connection,
        }
    }

    /// Reads the next request; returns `None` if the client has closed the connection.
    pub(crate) async fn next_request(
        &mut self,
        socket: &mut ReadHalf<'_>,
    ) -> io::Result<Option<Request>> {
        let end = loop {
            if let Some(end) = find_bytes(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if !self.read_more(socket).await? {
                return Ok(None);
            }
        };
        let rest = self.buffer.split_off(end + 4);
        let head = String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)).into_owned();
        let mut request = parse_head(&head, self.connection)?;
        let length = request
            .header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        while self.buffer.len() < length {
            if !self.read_more(socket).await? {
                return Ok(None);
            }
        }
        let rest = self.buffer.split_off(length);
        request.body = std::mem::replace(&mut self.buffer, rest);
        Ok(Some(request))
    }

    async fn read_more(&mut self, socket: &mut ReadHalf<'_>) -> io::Result<bool> {
        if self.buffer.len() > MAX_REQUEST_BYTES {
            return Err(io::Error::other("the request is too large"));
        }
        Ok(socket.read_buf(&mut self.buffer).await? > 0)
    }
}

fn parse_head(head: &str, connection: usize) -> io::Result<Request> {
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target)) = (first.next(), first.next()) else {
        return Err(io::Error::other("no request line"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body: Vec::new(),
        connection,
    })
}

fn find_bytes(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

/// Writes the status line and headers of an answer with a chunked body.
pub(super) async fn write_head(
    socket: &mut WriteHalf<'_>,
    status: u16,
    content_type: &str,
    headers: &[(String, String)],
) -> io::Result<()> {
    use std::fmt::Write as _;
    let mut head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n"
    );
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
    socket.write_all(head.as_bytes()).await
}

/// Writes one chunk of the body.
pub(super) async fn write_chunk(socket: &mut WriteHalf<'_>, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    socket.write_all(&chunk).await
}

/// Writes the end of a chunked body.
pub(super) async fn write_end(socket: &mut WriteHalf<'_>) -> io::Result<()> {
    socket.write_all(b"0\r\n\r\n").await
}
