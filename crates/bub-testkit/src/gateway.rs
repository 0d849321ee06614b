//! A running `bub gateway`, a client that posts messages, and a server that receives callbacks.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at the first surprise"
)]

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    ops::{Deref, DerefMut},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::sandbox::signal;

/// The token of the webhook.
pub const TOKEN: &str = "correct-horse-battery";

/// How long the start of a gateway may take on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// A running gateway and its log. Killed when dropped.
pub struct GatewayProcess {
    /// The process.
    pub child: Child,
    log: Arc<Mutex<String>>,
}

impl GatewayProcess {
    /// Starts `gateway` with a command of the program. Does not wait until the gateway is ready.
    pub fn start(command: Command) -> Self {
        Self::spawn(command).0
    }

    /// Starts a gateway. The receiver gets the address of its webhook.
    fn spawn(mut command: Command) -> (Self, Receiver<String>) {
        let mut child = command
            .env("BUB_VERBOSE", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The log is read to its end, because a full pipe would block the program.
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (log, (listening, address)) = (Arc::<Mutex<String>>::default(), channel());
        let seen = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                seen.lock().unwrap().extend([line.as_str(), "\n"]);
                if let Some(address) = listening_address(&line) {
                    let _ = listening.send(address);
                }
            }
        });
        (Self { child, log }, address)
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Stops the gateway cleanly and returns its log.
    pub fn stop(mut self) -> String {
        signal(&self.child, "TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.log()
    }

    /// Kills the gateway.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A gateway with a webhook on a port that it chose.
pub struct GatewayClient {
    process: GatewayProcess,
    /// Address of the webhook.
    pub address: String,
}

impl GatewayClient {
    /// Starts `gateway` with a command of the program, and waits until the webhook listens.
    pub fn start(mut command: Command) -> Self {
        command
            .env("BUB_WEBHOOK_TOKEN", TOKEN)
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
            .env("BUB_WEBHOOK_CALLBACK_HOSTS", "127.0.0.1");
        let (process, address) = GatewayProcess::spawn(command);
        match address.recv_timeout(START_TIMEOUT) {
            Ok(address) => Self { process, address },
            Err(error) => panic!("it does not listen: {error}: {}", process.log()),
        }
    }

    /// Posts a message. Returns the status and the body of the response.
    pub fn post(&self, body: &str) -> (String, String) {
        let mut stream = self.begin(body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    }

    /// Posts a message and parses the response as JSON.
    pub fn ask(&self, body: &Value) -> Value {
        serde_json::from_str(&self.post(&body.to_string()).1).unwrap()
    }

    /// Posts a message without reading the response.
    pub fn begin(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{}{body}", request_head(body)).unwrap();
        stream
    }

    /// Stops the gateway cleanly.
    pub fn stop(self) {
        self.process.stop();
    }
}

impl Deref for GatewayClient {
    type Target = GatewayProcess;

    fn deref(&self) -> &GatewayProcess {
        &self.process
    }
}

impl DerefMut for GatewayClient {
    fn deref_mut(&mut self) -> &mut GatewayProcess {
        &mut self.process
    }
}

/// Returns the address that a gateway has logged.
fn listening_address(log: &str) -> Option<String> {
    let (_, rest) = log.split_once("webhook.listening address=")?;
    rest.split_once(' ').map(|(address, _)| address.to_owned())
}

/// Returns the head of a request with a message.
pub(crate) fn request_head(body: &str) -> String {
    format!(
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
}

/// Posts `message KEY` to a gateway that may end at any moment. Returns the id if the message was accepted.
pub fn post(address: &str, key: u64, chat: u64, callback: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let body = json!({
        "content": format!("message {key}"), "chat_id": format!("chat{chat}"), "idempotency_key": key.to_string(),
        "reply": "callback", "callback_url": callback,
    })
    .to_string();
    write!(stream, "{}{body}", request_head(&body)).ok()?;
    let body = read_body(&mut BufReader::new(stream))?;
    let answer: Value = serde_json::from_str(&body).ok()?;
    let id = answer["id"].as_str().map(str::to_owned);
    assert!(
        id.is_some() || answer["error"]["code"] != "invalid_request",
        "{body}"
    );
    id
}

/// Received callbacks: the delivery id and the text of each reply, by message id.
#[derive(Clone, Default)]
pub struct CallbackServer(Arc<Mutex<Replies>>);

/// The delivery id and the text of each reply, by message id.
pub type Replies = HashMap<String, Vec<(String, String)>>;

impl CallbackServer {
    /// Starts a server for callbacks and returns its URL. `seen` is called before each response and returns its status.
    pub fn listen(&self, seen: impl Fn() -> u16 + Clone + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let here = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (here, seen) = (here.clone(), seen.clone());
                thread::spawn(move || here.take(stream, seen));
            }
        });
        format!("http://{address}/replies")
    }

    fn take(&self, mut stream: TcpStream, seen: impl Fn() -> u16) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let body = read_body(&mut reader)?;
            let reply: Value = serde_json::from_str(&body).ok()?;
            let text = |key: &str| reply[key].as_str().map(str::to_owned);
            let status = seen();
            if status == 200 {
                let mut all = self.0.lock().unwrap();
                all.entry(text("id")?)
                    .or_default()
                    .push((text("delivery")?, text("reply")?));
            }
            stream
                .write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").as_bytes())
                .ok()?;
        }
    }

    /// Returns all callbacks.
    pub fn all(&self) -> Replies {
        self.0.lock().unwrap().clone()
    }

    /// Returns the number of messages with a callback.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits for the reply with this number to a message, counted from 0.
    pub fn reply(&self, id: &str, number: usize) -> String {
        for _ in 0..3000 {
            if let Some((_, text)) = self
                .0
                .lock()
                .unwrap()
                .get(id)
                .and_then(|replies| replies.get(number))
            {
                return text.clone();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("no reply {number} to {id} within 30 s: {:?}", self.all());
    }

    /// Waits until each of these messages has a reply. Returns how many have none at the end.
    pub fn missing<'a>(&self, ids: &(impl Iterator<Item = &'a String> + Clone)) -> usize {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let all = self.0.lock().unwrap();
            let missing = ids.clone().filter(|id| !all.contains_key(*id)).count();
            drop(all);
            if missing == 0 || Instant::now() > deadline {
                return missing;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads the body of a request or response. Returns `None` if the connection ended earlier.
fn read_body(reader: &mut impl BufRead) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    String::from_utf8(body).ok()
}
