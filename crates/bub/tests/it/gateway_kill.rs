//! SIGKILL at any moment between a message and its reply: what was accepted is answered, once.
//!
//! `BUB_KILL_ROUNDS=2000` is the long form.

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::sandbox::{Sandbox, bub, signal};

const TOKEN: &str = "correct-horse-battery";
const CHATS: u64 = 5;

/// The deliveries of each message, by its id.
type Delivered = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// Takes callbacks, and returns where.
fn callbacks(delivered: &Delivered) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let delivered = Arc::clone(delivered);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let delivered = Arc::clone(&delivered);
            std::thread::spawn(move || take_callbacks(stream, &delivered));
        }
    });
    format!("http://{address}/replies")
}

fn take_callbacks(stream: TcpStream, delivered: &Delivered) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let body = read_body(&mut reader)?;
        let reply: Value = serde_json::from_str(&body).ok()?;
        let text = |key: &str| reply[key].as_str().map(str::to_owned);
        delivered.lock().unwrap().entry(text("id")?).or_default().push(text("delivery")?);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// The body of a request or an answer; `None` when the connection ended before.
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

fn start(sandbox: &Sandbox, model: &ModelServer) -> (Child, String) {
    let mut child = sandbox
        .command(&bub())
        .arg("gateway")
        .env("BUB_WEBHOOK_TOKEN", TOKEN)
        .env("BUB_WEBHOOK_LISTEN", "127.0.0.1:0")
        .env("BUB_WEBHOOK_CALLBACK_HOSTS", "127.0.0.1")
        .env("BUB_VERBOSE", "1")
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "sk-none-at-all")
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
    std::thread::spawn(move || lines.for_each(drop));
    (child, address.unwrap_or_else(|| panic!("it does not listen: {log:?}")))
}

/// Posts a message; its id when it was accepted.
fn post(address: &str, key: u64, callback: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let body = format!(
        r#"{{"content": "message {key}", "chat_id": "chat{}", "idempotency_key": "{key}", "reply": "callback", "callback_url": "{callback}"}}"#,
        key % CHATS
    );
    write!(
        stream,
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let body = read_body(&mut BufReader::new(stream))?;
    let answer: Value = serde_json::from_str(&body).ok()?;
    let id = answer["id"].as_str().map(str::to_owned);
    assert!(id.is_some() || answer["error"]["code"] != "invalid_request", "{body}");
    id
}

// L1: accepted = answered, none lost; a reply that is seen twice is the same delivery, cut off before it was written down.
#[test]
fn a_gateway_killed_at_any_moment_loses_and_doubles_nothing() {
    let rounds: u64 = std::env::var("BUB_KILL_ROUNDS").map_or(200, |rounds| rounds.parse().unwrap());
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("as you say"));
    let delivered = Delivered::default();
    let callback = callbacks(&delivered);
    let mut accepted: HashMap<u64, String> = HashMap::new();
    let mut open: Vec<u64> = Vec::new();
    let mut next = 0;
    for round in 0..rounds {
        let (mut child, address) = start(&sandbox, &model);
        // Moments spread evenly, from before the first message to well into the work.
        let moment = Duration::from_micros(round * 7919 % 60_000);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(moment);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        // What had no answer is posted again, with the same key: a client cannot know better.
        let mut posts: Vec<u64> = std::mem::take(&mut open);
        while !killer.is_finished() {
            let key = posts.pop().unwrap_or_else(|| {
                next += 1;
                next
            });
            match post(&address, key, &callback) {
                Some(id) => drop(accepted.insert(key, id)),
                None => open.push(key),
            }
        }
        open.append(&mut posts);
        killer.join().unwrap();
    }
    let (mut child, address) = start(&sandbox, &model);
    for key in open {
        let id = post(&address, key, &callback).expect("nobody kills it any more");
        accepted.insert(key, id);
    }
    let deadline = Instant::now() + Duration::from_mins(2);
    let missing = || {
        let delivered = delivered.lock().unwrap();
        accepted.values().filter(|id| !delivered.contains_key(*id)).count()
    };
    while missing() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(missing(), 0, "of {} messages in {rounds} rounds", accepted.len());
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(accepted.len() as u64 > rounds / 4, "only {} messages got in", accepted.len());
    let delivered = delivered.lock().unwrap();
    for (id, deliveries) in delivered.iter() {
        let replies: HashSet<_> = deliveries.iter().collect();
        assert_eq!(replies.len(), 1, "{id} has several replies: {deliveries:?}");
    }
    let ids: HashSet<_> = accepted.values().collect();
    assert_eq!(ids.len(), accepted.len(), "a key stands for one message");
    let twice = delivered.values().filter(|deliveries| deliveries.len() > 1).count() as u64;
    assert!(twice <= rounds * CHATS, "{twice} replies were posted again");
    assert_eq!(sandbox.bub(["outbox", "list"]).ok(), "(every reply is delivered)\n");
    sandbox.bub(["tape", "check"]).ok();
}
