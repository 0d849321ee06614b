//! A server on a free loopback port, with its own thread and runtime.
//!
//! The test may pause its clock, block, or have no runtime; the server still answers.

use std::{future::Future, net::SocketAddr, thread};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::watch,
    task::JoinSet,
};

/// A server that runs until it is dropped, which closes every connection.
pub(crate) struct Loopback {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Loopback {
    /// Starts a server that runs a function per connection.
    #[expect(
        clippy::expect_used,
        reason = "tests cannot continue without a loopback port"
    )]
    pub(crate) fn start<Served>(connection: impl Fn(TcpStream) -> Served + Send + 'static) -> Self
    where
        Served: Future<Output = ()> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port on loopback");
        listener
            .set_nonblocking(true)
            .expect("a non-blocking listener");
        let address = listener.local_addr().expect("the address of the listener");
        let (stop, stopped) = watch::channel(false);
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener in the runtime");
                serve(listener, connection, stopped).await;
            });
        });
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://127.0.0.1:PORT`, without a trailing slash.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Accepts connections until the test ends; dropping the set closes them.
async fn serve<Served: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    connection: impl Fn(TcpStream) -> Served,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((socket, _)) = accepted {
                    connections.spawn(connection(socket));
                }
            }
            Some(_) = connections.join_next() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}
