//! The HTTP listener: connections and their limits. It serves the routes of all plugins.
//!
//! It uses hyper directly, because `axum::serve` limits neither the number of connections, nor the size of a request
//! head, nor the time to send it.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bub::kernel::{Error, ErrorKind, Result};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{route_table::RouteTable, webhook::WebhookOptions};

/// Maximum size of a request head in bytes. A larger head is answered with 431.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Delay after a failed accept, for example because too many files are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long a rejected connection may take to read its response.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// How long connections may take to end when the listener stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of connections beyond the limit that get a 503 at the same time. Further connections are closed
/// without a response.
const MAX_REJECTED_CONNECTIONS: usize = 64;
/// Response to a connection beyond the limit. It is written without reading the request.
const TOO_MANY_CONNECTIONS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 85\r\n\r\n\
{\"error\": {\"code\": \"too_many_connections\", \"message\": \"too many connections; retry\"}}";

/// The running listener.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    routes: Arc<RouteTable>,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// Listens on the address of the options until `stop` is cancelled. Then finishes the open connections.
    pub(crate) async fn start(
        options: &WebhookOptions,
        routes: RouteTable,
        stop: CancellationToken,
    ) -> Result<Self> {
        let listener = bind_listener(&options.listen).await?;
        let address = listener.local_addr()?;
        let routes = Arc::new(routes);
        let accepting =
            accept_connections(listener, options.connections, Arc::clone(&routes), stop);
        let task = tokio::spawn(accepting);
        Ok(Self {
            address,
            routes,
            task,
        })
    }

    /// Ends the responses that wait, and then the listener. After [`STOP_TIMEOUT`], aborts the open connections.
    pub(crate) async fn stop(mut self) {
        self.routes.stop.cancel();
        // Dropping the server aborts what is left.
        let _ = timeout(STOP_TIMEOUT, &mut self.task).await;
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn bind_listener(listen: &str) -> Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let port = listen.rsplit(':').next().unwrap_or(listen);
        match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::new(
                ErrorKind::Temporary,
                format!("cannot listen on `{listen}`: another program uses port {port}; stop it, or set `webhook.listen` to another port"),
            ),
            _ => Error::config(format!("cannot listen on `{listen}`: {error}; set `webhook.listen` to an address such as 127.0.0.1:8787")),
        }
    })
}

async fn accept_connections(
    listener: TcpListener,
    max_connections: usize,
    routes: Arc<RouteTable>,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(max_connections));
    let rejections = Arc::new(Semaphore::new(MAX_REJECTED_CONNECTIONS));
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = routes.stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match (accepted, Arc::clone(&permits).try_acquire_owned()) {
                (Ok((stream, _)), Ok(permit)) => {
                    let connection = serve_connection(Arc::clone(&routes), stream, closing.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                (Ok((stream, _)), Err(_)) => reject_connection(stream, &rejections),
                (Err(error), _) => {
                    tracing::warn!(%error, "webhook.accept_failed");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }
    drop(listener);
    closing.cancel();
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(routes: Arc<RouteTable>, stream: TcpStream, closing: CancellationToken) {
    // Send small responses at once. If this fails, they are only delayed.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(routes.read_timeout());
    builder
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_HEAD_BYTES * 2);
    let service = service_fn(move |request| {
        let routes = Arc::clone(&routes);
        async move { Ok::<_, Infallible>(routes.handle(request).await) }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "webhook.connection_failed");
    }
}

/// Sends a 503 response to a connection beyond the limit, so that the client retries.
fn reject_connection(mut stream: TcpStream, rejections: &Arc<Semaphore>) {
    // Without a permit, the connection is closed without a response.
    let Ok(permit) = Arc::clone(rejections).try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let respond = async {
            stream.write_all(TOO_MANY_CONNECTIONS_RESPONSE).await?;
            stream.shutdown().await?;
            // Closing a socket with unread data would discard the response.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        };
        let _ = timeout(REJECTION_TIMEOUT, respond).await;
        drop(permit);
    });
}
