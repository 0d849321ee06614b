//! A running `bub gateway`, a client that posts messages, and a server that receives callbacks.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bub_testkit::model::ModelServer;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, bub, signal};

pub(crate) const TOKEN: &str = "correct-horse-battery";

/// A gateway with a webhook.
pub(crate) struct GatewayClient {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl GatewayClient {
    pub(crate) fn start(sandbox: &Sandbox, model: &ModelServer) -> Self {
        Self::with(sandbox, model, &[], &[])
    }

    pub(crate) fn with(
        sandbox: &Sandbox,
        model: &ModelServer,
        args: &[&str],
        settings: &[(&str, &str)],
    ) -> Self {
        let mut child = sandbox
            .command(&bub())
            .arg("gateway")
            .args(args)
            .env("BUB_WEBHOOK_TOKEN", TOKEN)
            .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
            .env("BUB_WEBHOOK_CALLBACK_HOSTS", "127.0.0.1")
            .env("BUB_VERBOSE", "1")
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_BASE", format!("{}/v1", model.url()))
            .env("BUB_API_KEY", "sk-none-at-all")
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = Vec::new();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            log.push(line.clone());
            let rest = line.split_once("webhook.listening address=")?.1;
            Some(rest.split(' ').next().unwrap().to_owned())
        });
        // Drain the rest of the log, because a full pipe would block the program.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: address.unwrap_or_else(|| panic!("it does not listen: {log:?}")),
        }
    }

    /// Posts a message. Returns the status and the body of the response.
    pub(crate) fn post(&self, body: &str) -> (String, String) {
        let mut stream = self.begin(body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    }

    /// Posts a message and parses the response as JSON.
    pub(crate) fn ask(&self, body: &Value) -> Value {
        serde_json::from_str(&self.post(&body.to_string()).1).unwrap()
    }

    pub(crate) fn begin(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{}{body}", head(body)).unwrap();
        stream
    }

    pub(crate) fn stop(mut self) {
        signal(&self.child, "TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for GatewayClient {
    fn drop(&mut self) {
        self.kill();
    }
}

fn head(body: &str) -> String {
    format!(
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
}

/// Posts `message KEY` to a gateway that may end at any moment. Returns the id if the message was accepted.
pub(crate) fn post(address: &str, key: u64, chat: u64, callback: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let body = json!({
        "content": format!("message {key}"), "chat_id": format!("chat{chat}"), "idempotency_key": key.to_string(),
        "reply": "callback", "callback_url": callback,
    })
    .to_string();
    write!(stream, "{}{body}", head(&body)).ok()?;
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
pub(crate) struct CallbackServer(Arc<Mutex<Replies>>);

type Replies = HashMap<String, Vec<(String, String)>>;

impl CallbackServer {
    /// Starts a server for callbacks and returns its URL. `seen` is called before each response and returns its status.
    pub(crate) fn listen(&self, seen: impl Fn() -> u16 + Clone + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let here = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (here, seen) = (here.clone(), seen.clone());
                std::thread::spawn(move || here.take(stream, seen));
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

    pub(crate) fn all(&self) -> Replies {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits for the reply with this number to a message, counted from 0.
    pub(crate) fn reply(&self, id: &str, number: usize) -> String {
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
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no reply {number} to {id} within 30 s: {:?}", self.all());
    }

    /// Waits until each of these messages has a reply. Returns how many have none at the end.
    pub(crate) fn missing<'a>(&self, ids: &(impl Iterator<Item = &'a String> + Clone)) -> usize {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let all = self.0.lock().unwrap();
            let missing = ids.clone().filter(|id| !all.contains_key(*id)).count();
            drop(all);
            if missing == 0 || Instant::now() > deadline {
                return missing;
            }
            std::thread::sleep(Duration::from_millis(20));
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
