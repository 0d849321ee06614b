//! Tests a gateway under load with random faults: its resource usage does not grow.
//!
//! `BUB_SOAK_SECONDS=3600 cargo test -p bub-cli --test it soak -- --nocapture` runs the long form.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bub_testkit::{
    model::{ModelServer, Reply, Request},
    progress::ProgressBar,
};
use serde_json::{Value, json};

use crate::{
    gateway_client::{CallbackServer, GatewayClient, TOKEN, start_gateway_with},
    sandbox::Sandbox,
};

/// Messages per chat before the next chat starts, so that sessions come and go.
const PER_CHAT: u64 = 10;

/// Deterministic pseudorandom numbers.
#[derive(Clone, Default)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let mut mixed = self
            .0
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % sides
    }
}

/// A model that answers, calls all kinds of tools, and fails in every way.
fn faulty_answer(request: &Request, dice: &Dice) -> Reply {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let last = body["messages"].as_array().unwrap().last().unwrap();
    let is_first = last["role"] != "tool";
    match dice.roll(20) {
        0 => Reply::status(401),
        1 => Reply::deltas(["half an ", "answer"]).cut_after(1),
        2 => Reply::deltas(["half an ", "answer"]).reset_after(1),
        3 => Reply::text("").garbage("no JSON at all"),
        4 => Reply::deltas(["and then ", "silence"]).hang_after(1),
        5 if is_first => Reply::new().call("c", "bash", r#"{"command": "kill -9 $$"}"#),
        6 if is_first => Reply::new().call(
            "c",
            "bash",
            r#"{"command": "sleep 3", "timeout_seconds": 1}"#,
        ),
        7 if is_first => Reply::new().call("c", "bash", r#"{"command": "sleep 2 & echo left"}"#),
        8 if is_first => Reply::new().call("c", "bash", r#"{"command": "yes | head -c 300000"}"#),
        9 if is_first => Reply::new().call("c", "no_such_tool", "{}"),
        _ => Reply::deltas(["all ", "is ", "well"]),
    }
}

/// Performs one action of a client.
fn run_client_action(
    address: &str,
    dice: &Dice,
    next: &AtomicU64,
    callback: &str,
) -> std::io::Result<()> {
    let chat = next.fetch_add(1, Ordering::Relaxed) / PER_CHAT;
    let chat_id = format!("chat{chat}");
    let mut body = json!({"content": "how is it?", "chat_id": chat_id, "reply": "none"});
    let kind = dice.roll(12);
    match kind {
        0..=3 => (body["reply"], body["callback_url"]) = ("callback".into(), callback.into()),
        4 | 5 => body["reply"] = "stream".into(),
        6 => body["content"] = ",quit".into(),
        7 => body["content"] = Value::Null,
        _ => {}
    }
    let mut text = body.to_string();
    if kind == 8 {
        text.truncate(text.len() / 2);
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let token = if kind == 9 { "wrong" } else { TOKEN };
    write!(
        stream,
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        text.len()
    )?;
    if kind == 10 {
        // Disconnect in the middle of the body.
        return stream.write_all(&text.as_bytes()[..10]);
    }
    stream.write_all(text.as_bytes())?;
    let mut answer = [0; 256];
    // Some clients read the start of a stream and disconnect.
    while stream.read(&mut answer)? > 0 && kind != 5 {}
    Ok(())
}

/// Returns the status of the gateway as soon as it is idle. Callers have a timeout.
fn idle_status(sandbox: &Sandbox, gateway: &GatewayClient) -> Value {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let status: Value = serde_json::from_str(&sandbox.bub(["status", "--json"]).ok()).unwrap();
        if status["unfinished"] == 0
            && status["undelivered"] == 0
            && status["process"]["files"].is_u64()
        {
            return status["process"].clone();
        }
        assert!(Instant::now() < deadline, "{status}");
        for session in status["sessions"].as_array().unwrap() {
            let chat = session["id"]
                .as_str()
                .unwrap()
                .trim_start_matches("webhook:");
            gateway.ask(&json!({"content": ",quit", "chat_id": chat, "reply": "none"}));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn children(of: u32) -> usize {
    let stat = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("stat")).ok();
    let is_child = |stat: &String| {
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(of)
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| stat(entry.ok()?))
        .filter(is_child)
        .count()
}

fn load(
    gateway: &GatewayClient,
    dice: &Dice,
    next: &Arc<AtomicU64>,
    callback: &str,
    time: Duration,
) {
    let started = Instant::now();
    let deadline = started + time;
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let (address, dice, next) = (gateway.address.clone(), dice.clone(), Arc::clone(next));
            let callback = callback.to_owned();
            std::thread::spawn(move || {
                while Instant::now() < deadline {
                    // Errors of a client do not matter.
                    let _ = run_client_action(&address, &dice, &next, &callback);
                }
            })
        })
        .collect();
    let mut bar = ProgressBar::new("soak, seconds", time.as_secs());
    while Instant::now() < deadline {
        bar.draw(started.elapsed().as_secs());
        std::thread::sleep(Duration::from_millis(200));
    }
    for client in clients {
        client.join().unwrap();
    }
}

// With random faults, memory stays flat and no task, file or process leaks.
#[cfg(target_os = "linux")]
#[test]
fn a_gateway_under_random_faults_keeps_nothing() {
    let seconds: u64 =
        std::env::var("BUB_SOAK_SECONDS").map_or(8, |seconds| seconds.parse().unwrap());
    let (sandbox, model, dice) = (Sandbox::new(), ModelServer::start(), Dice::default());
    let for_model = dice.clone();
    model
        .forget_requests()
        .answer_with(move |request| faulty_answer(request, &for_model));
    let settings = [
        ("BUB_WEBHOOK_ROLE", "owner"),
        ("BUB_POLICY_UNTRUSTED_CONTENT", "allow"),
        ("BUB_WEBHOOK_REPLY_TIMEOUT_SECONDS", "2"),
        ("BUB_VERBOSE", "1"),
    ];
    let gateway = start_gateway_with(&sandbox, &model, &[], &settings);
    let delivered = CallbackServer::default();
    let for_callbacks = dice.clone();
    let callback = delivered.listen(move || {
        if for_callbacks.roll(10) == 0 {
            503
        } else {
            200
        }
    });
    let next = Arc::new(AtomicU64::new(0));
    load(
        &gateway,
        &dice,
        &next,
        &callback,
        Duration::from_secs(seconds) / 3,
    );
    let warm = idle_status(&sandbox, &gateway);
    load(
        &gateway,
        &dice,
        &next,
        &callback,
        Duration::from_secs(seconds) * 2 / 3,
    );
    let end = idle_status(&sandbox, &gateway);
    let number = |process: &Value, key: &str| process[key].as_u64().unwrap();
    println!(
        "{} requests, {} callbacks; after a third {warm}, in the end {end}",
        next.load(Ordering::Relaxed),
        delivered.count()
    );
    assert!(
        number(&end, "tasks") <= number(&warm, "tasks") + 20,
        "tasks: {warm} {end}"
    );
    // Recently used tapes stay open, up to a limit.
    assert!(
        number(&end, "files") <= number(&warm, "files").max(200) + 20,
        "files: {warm} {end}"
    );
    let (before, after) = (number(&warm, "memory_mb"), number(&end, "memory_mb"));
    assert!(after <= before + before / 5 + 10, "memory: {warm} {end}");
    assert!(delivered.count() > 10, "{}", delivered.count());
    let mut left = usize::MAX;
    for _ in 0..100 {
        left = children(gateway.child.id());
        if left == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(left, 0, "commands still run");
    let pid = gateway.child.id();
    gateway.stop();
    assert_eq!(children(pid), 0);
    sandbox.bub(["tape", "check"]).ok();
}
