//! A scripted model server on loopback for the four wire formats of the product.
//!
//! A test scripts the answers per request, independent of the wire format: text, reasoning, tool
//! calls, usage, errors, and connection failures. The path of a request selects the format of the
//! answer, so one script works for all formats. Requests are kept for assertions.
//!
//! The server has its own thread and runtime. A test may pause its clock, block, or have no runtime
//! (a test of the complete program), and the server still answers. It has no timers: the test, not
//! a clock, controls a slow answer ([`Pace`]).
//!
//! ```
//! use bub_testkit::model::{ModelServer, Reply};
//!
//! let server = ModelServer::start();
//! server.script(Reply::status(429).header("retry-after", "1"));
//! server.script(Reply::deltas(["Hel", "lo"]).crlf().cut_after(3));
//! server.script(Reply::new().reasoning("hm").call("call_1", "fs_read", r#"{"path":"a"}"#));
//! assert!(server.url().starts_with("http://127.0.0.1:"));
//! ```

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod clock;
mod format;
pub(crate) mod http;
pub(crate) mod log;
mod pace;
mod reply;
mod serve;

pub use clock::ManualClock;
pub use format::Format;
pub use log::Request;
pub use pace::Pace;
pub use reply::{Finish, Reply, ReplyUsage};

use crate::loopback::Loopback;
use log::Log;

/// A model server that sends scripted answers and records requests.
///
/// It stops and closes every connection when it is dropped.
pub struct ModelServer {
    server: Loopback,
    shared: Arc<ServerState>,
}

/// State shared by the server's thread and the test.
struct ServerState {
    script: Mutex<Script>,
    log: Log,
}

type Answer = Arc<dyn Fn(&Request) -> Reply + Send + Sync>;

#[derive(Default)]
struct Script {
    replies: VecDeque<Reply>,
    answer: Option<Answer>,
    fallback: Option<Reply>,
    models: Vec<String>,
}

impl ModelServer {
    /// Starts a server on a free loopback port.
    pub fn start() -> Self {
        let shared = Arc::new(ServerState {
            script: Mutex::default(),
            log: Log::default(),
        });
        let serving = Arc::clone(&shared);
        Self {
            server: Loopback::start(move |socket| {
                serve::serve_connection(socket, Arc::clone(&serving))
            }),
            shared,
        }
    }

    /// Returns `http://127.0.0.1:PORT`, without a trailing slash.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Adds an answer to the end of the script.
    pub fn script(&self, reply: Reply) -> &Self {
        self.shared.script().replies.push_back(reply);
        self
    }

    /// Sets the answer for every request after the end of the script. The default is a 500 with an
    /// explanation.
    pub fn otherwise(&self, reply: Reply) -> &Self {
        self.shared.script().fallback = Some(reply);
        self
    }

    /// Sets a function that answers every request after the end of the script. It runs in the
    /// server's thread.
    pub fn answer_with(&self, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> &Self {
        self.shared.script().answer = Some(Arc::new(answer));
        self
    }

    /// Stops recording requests, for tests that send very many.
    pub fn forget_requests(&self) -> &Self {
        self.shared.log.stop_recording();
        self
    }

    /// Sets the models that `GET …/models` lists. Such requests use no answer of the script.
    pub fn models<I: Into<String>>(&self, names: impl IntoIterator<Item = I>) -> &Self {
        self.shared.script().models = names.into_iter().map(Into::into).collect();
        self
    }

    /// Returns the number of unused answers in the script.
    pub fn unused_replies(&self) -> usize {
        self.shared.script().replies.len()
    }

    /// Returns all requests in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    /// Waits for the request with this index, counted from 0.
    pub async fn wait_request(&self, index: usize) -> Request {
        self.shared.log.wait_request(index).await
    }

    /// Waits until the head and this many events of the answer to the request with this index are
    /// sent. With a [`ManualClock`], a test waits for this before it advances the clock: otherwise
    /// the clock runs ahead of the answer on a busy machine.
    pub async fn wait_sent(&self, index: usize, events: usize) {
        self.shared.log.wait_sent(index, events).await;
    }

    /// Returns the number of connections that were opened.
    pub fn connections(&self) -> usize {
        self.shared.log.connections()
    }

    /// Waits until the client closes the connection of the request with this index.
    pub async fn wait_closed(&self, index: usize) {
        let connection = self.wait_request(index).await.connection;
        self.shared.log.wait_closed(connection).await;
    }
}

impl ServerState {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer for one request.
    fn next_reply(&self, request: &Request) -> Reply {
        let mut script = self.script();
        if request.method == "GET" && request.path.ends_with("/models") {
            return Reply::model_list(&script.models);
        }
        if let Some(reply) = script.replies.pop_front() {
            return reply;
        }
        if let Some(answer) = script.answer.clone() {
            drop(script);
            return answer(request);
        }
        script
            .fallback
            .clone()
            .unwrap_or_else(|| Reply::status(500).message("the script has no answer left"))
    }
}
