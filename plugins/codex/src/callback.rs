//! The local listener that receives the redirect of the browser after the sign-in.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{LoginError, redirect};

/// Path that the sign-in page redirects to.
pub(crate) const CALLBACK_PATH: &str = "/auth/callback";

const MAX_REQUEST_BYTES: u64 = 16 * 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP listener on the loopback addresses.
pub(crate) struct Listener {
    v4: TcpListener,
    /// Listener on the IPv6 loopback address, to which browsers may resolve `localhost`; `None` if binding failed.
    v6: Option<TcpListener>,
}

impl Listener {
    pub(crate) async fn bind(port: u16) -> io::Result<Self> {
        let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, v4.local_addr()?.port()))
            .await
            .ok();
        Ok(Self { v4, v6 })
    }

    pub(crate) fn port(&self) -> io::Result<u16> {
        self.v4.local_addr().map(|address| address.port())
    }

    /// Serves requests until one contains `state`, the random OAuth value of this login. Returns the code in that
    /// request, or an error if the sign-in was refused.
    ///
    /// Every connection has its own task, because browsers open connections on which they never send anything. A
    /// request with another `state` is rejected but does not end the wait, because any web page could send such a
    /// request.
    pub(crate) async fn wait_for_code(self, state: &str) -> Result<String, LoginError> {
        let state: Arc<str> = state.into();
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.accept() => {
                    // Ignore failed connections; the browser retries.
                    if let Ok((stream, _)) = accepted {
                        requests.spawn(serve_connection(stream, Arc::clone(&state)));
                    }
                }
                Some(served) = requests.join_next() => {
                    if let Ok(Some(outcome)) = served {
                        return outcome;
                    }
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Some(v6) = &self.v6 else {
            return self.v4.accept().await;
        };
        tokio::select! {
            accepted = self.v4.accept() => accepted,
            accepted = v6.accept() => accepted,
        }
    }
}

/// Serves one connection. Returns the code or the error of the login, or `None` if the request contains neither.
async fn serve_connection(
    mut stream: TcpStream,
    state: Arc<str>,
) -> Option<Result<String, LoginError>> {
    let exchange = async {
        let target = read_target(&mut stream).await?;
        let (status, text, outcome) = build_response(&target, &state);
        let page = format!("<!doctype html><title>bub</title><p>{text}</p>\n");
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            page.len()
        );
        // Ignore write errors: the outcome is valid even if the browser does not read the page.
        let _ = stream.write_all(format!("{head}{page}").as_bytes()).await;
        let _ = stream.shutdown().await;
        outcome
    };
    let served = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
    served.unwrap_or(None)
}

/// HTTP status, text of the page, and the outcome of the login if the request determines it.
type CallbackResponse = (
    &'static str,
    &'static str,
    Option<Result<String, LoginError>>,
);

/// Returns the HTTP status, the text of the page and the outcome of the login for a request.
fn build_response(target: &str, state: &str) -> CallbackResponse {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if path != CALLBACK_PATH {
        return ("404 Not Found", "Page not found.", None);
    }
    match redirect::parse_query(query, state) {
        Ok(code) => (
            "200 OK",
            "Signed in. You can close this page and return to the terminal.",
            Some(Ok(code)),
        ),
        Err(error @ LoginError::Refused(_)) => (
            "200 OK",
            "The sign-in was refused. See the terminal for details.",
            Some(Err(error)),
        ),
        Err(_) => (
            "400 Bad Request",
            "This response does not belong to the pending login. Run the command again and use its URL.",
            None,
        ),
    }
}

/// Reads the head of a GET request and returns its target, the path and query.
async fn read_target(stream: &mut TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream.take(MAX_REQUEST_BYTES)).lines();
    let first = lines.next_line().await.ok()??;
    while !lines.next_line().await.ok()??.is_empty() {}
    let mut words = first.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    (method == "GET" && version.starts_with("HTTP/1.")).then(|| target.to_owned())
}
