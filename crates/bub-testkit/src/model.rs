//! A scripted model server on loopback, for the four wire formats that the product speaks.
//!
//! A test says what the model answers, request after request, in words that no format owns: text, reasoning,
//! tool calls, usage, errors, and every way in which a connection goes wrong. The path of a request decides in
//! which format the answer is written, so one script serves all of them. What was sent is kept for assertions.
//!
//! The server has a thread and a runtime of its own. A test may therefore pause its own clock, block, or have
//! no runtime at all (a test of the whole program), and the server still answers. It has no timers: a slow
//! answer waits for the test ([`Pace`]), not for a clock.
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

/// A model server that answers what its script says, and remembers what it was asked.
///
/// It stops, and closes every connection, when it is dropped.
pub struct ModelServer {
    server: Loopback,
    shared: Arc<ServerState>,
}

/// What the server's thread and the test both see.
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
    /// Starts a server on a free port of loopback.
    pub fn start() -> Self {
        let shared = Arc::new(ServerState {
            script: Mutex::default(),
            log: Log::default(),
        });
        let serving = Arc::clone(&shared);
        Self {
            server: Loopback::start(move |socket| serve::connection(socket, Arc::clone(&serving))),
            shared,
        }
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Adds the answer for the next request that has none yet.
    pub fn script(&self, reply: Reply) -> &Self {
        self.shared.script().replies.push_back(reply);
        self
    }

    /// The answer for every request after the end of the script. Without one they get a 500 that says so.
    pub fn otherwise(&self, reply: Reply) -> &Self {
        self.shared.script().fallback = Some(reply);
        self
    }

    /// Has every request after the end of the script answered by a function, in the server's thread.
    pub fn answer_with(&self, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> &Self {
        self.shared.script().answer = Some(Arc::new(answer));
        self
    }

    /// Keeps no request from now on: for tests that send very many.
    pub fn forget_requests(&self) -> &Self {
        self.shared.log.forget();
        self
    }

    /// What `GET …/models` lists; such requests use up no answer of the script.
    pub fn models<I: Into<String>>(&self, names: impl IntoIterator<Item = I>) -> &Self {
        self.shared.script().models = names.into_iter().map(Into::into).collect();
        self
    }

    /// How many answers of the script nobody asked for yet.
    pub fn unused(&self) -> usize {
        self.shared.script().replies.len()
    }

    /// Every request so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.requests()
    }

    /// The request with this number, counted from 0; waits until it has arrived.
    pub async fn request(&self, index: usize) -> Request {
        self.shared.log.request(index).await
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.shared.log.connections()
    }

    /// Waits until the client has closed the connection on which the request with this number came.
    pub async fn closed(&self, index: usize) {
        let connection = self.request(index).await.connection;
        self.shared.log.closed(connection).await;
    }
}

impl ServerState {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer for one request.
    fn next_reply(&self, request: &Request) -> Reply {
        let mut script = self.script();
        if request.method == "GET" && request.path.ends_with("/models") {
            return Reply::models(&script.models);
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
