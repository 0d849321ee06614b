//! Kills the gateway between a message and its reply: every accepted message is answered once.
//!
//! `BUB_KILL_ROUNDS=2000` runs the long form.
#![expect(clippy::print_stdout, reason = "figures of the long form")]

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use bub_testkit::model::{ModelServer, Reply, Request};

use crate::{
    gateway_client::{CallbackServer, GatewayClient, post, start_gateway, start_gateway_with},
    sandbox::Sandbox,
};

const CHATS: u64 = 5;

/// Alternates between both policies, so that each start reads what the other policy wrote.
fn durability(round: u64) -> (&'static str, &'static str) {
    (
        "BUB_TAPE_DURABILITY",
        if round.is_multiple_of(2) {
            "os"
        } else {
            "always"
        },
    )
}

fn rounds() -> u64 {
    std::env::var("BUB_KILL_ROUNDS").map_or(200, |rounds| rounds.parse().unwrap())
}

/// The knowledge of the clients and the messages to post again.
#[derive(Default)]
struct Clients {
    /// Ids of accepted messages, by key.
    accepted: HashMap<u64, String>,
    /// Keys of messages without a response. A client must post them again with the same key.
    open: Vec<u64>,
    last: u64,
}

impl Clients {
    /// Posts an open message again, or a new one.
    fn post(&mut self, address: &str, callback: &str) {
        let key = self.open.pop().unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        match post(address, key, key % CHATS, callback) {
            Some(id) => drop(self.accepted.insert(key, id)),
            None => self.open.insert(0, key),
        }
    }

    /// Runs a gateway without kills: every message is accepted and answered, and the home is consistent.
    fn finish(
        mut self,
        gateway: GatewayClient,
        callback: &str,
        delivered: &CallbackServer,
        sandbox: &Sandbox,
    ) {
        while !self.open.is_empty() {
            self.post(&gateway.address, callback);
        }
        let Self { accepted, .. } = self;
        assert_eq!(
            delivered.missing(&accepted.values()),
            0,
            "of {} messages",
            accepted.len()
        );
        gateway.stop();
        let delivered = delivered.all();
        for (id, deliveries) in &delivered {
            let replies: HashSet<_> = deliveries.iter().map(|(delivery, _)| delivery).collect();
            assert_eq!(replies.len(), 1, "{id} has several replies: {deliveries:?}");
        }
        let ids: HashSet<_> = accepted.values().collect();
        assert_eq!(ids.len(), accepted.len(), "a key stands for one message");
        let twice = delivered
            .values()
            .filter(|deliveries| deliveries.len() > 1)
            .count();
        println!(
            "{} accepted and answered, {twice} replies posted again",
            accepted.len()
        );
        assert!(
            twice as u64 <= rounds() * CHATS,
            "{twice} replies were posted again"
        );
        assert_eq!(
            sandbox.bub(["outbox", "list"]).ok(),
            "no undelivered replies\n"
        );
        sandbox.bub(["tape", "check"]).ok();
    }
}

// L1: every accepted message is answered; a reply that arrives twice is the same delivery, interrupted before it was
// recorded.
#[test]
fn a_gateway_killed_at_any_moment_loses_and_doubles_nothing() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("as you say"));
    let delivered = CallbackServer::default();
    let callback = delivered.listen(|| 200);
    let mut clients = Clients::default();
    for round in 0..rounds() {
        let mut gateway = start_gateway_with(&sandbox, &model, &[], &[durability(round)]);
        let address = gateway.address.clone();
        // Evenly spread moments, from before the first message to the middle of the work.
        let moment = Duration::from_micros(round * 7919 % 60_000);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(moment);
            gateway.kill();
        });
        while !killer.is_finished() {
            clients.post(&address, &callback);
        }
        killer.join().unwrap();
    }
    assert!(
        clients.accepted.len() as u64 > rounds() / 4,
        "only {} messages got in",
        clients.accepted.len()
    );
    clients.finish(
        start_gateway(&sandbox, &model),
        &callback,
        &delivered,
        &sandbox,
    );
}

/// A step of a turn that is visible from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The first model call, which returns a tool call.
    FirstCall,
    /// The tool has finished.
    Tool,
    /// The model call with the tool result.
    SecondCall,
    /// A reply arrives.
    Delivered,
}

/// A model that calls a tool to write a line with the key of the message, and then answers.
pub(crate) fn writing_model(request: &Request, on_step: impl Fn(Step)) -> Reply {
    let messages = request.json()["messages"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let last = messages
        .last()
        .and_then(|last| last["content"].as_str())
        .unwrap_or_default();
    // After a step with tools, the last message is the result of a tool.
    let key: Option<u64> = last
        .rsplit("message ")
        .next()
        .and_then(|key| key.trim().parse().ok());
    on_step(if key.is_some() {
        Step::FirstCall
    } else {
        Step::SecondCall
    });
    let Some(key) = key else {
        return Reply::text("written down");
    };
    Reply::new().call(
        "call",
        "bash",
        &format!(r#"{{"command": "echo {key} >> log"}}"#),
    )
}

/// Waits for a step and a little longer, with a timeout, because an earlier process may have done it already.
fn await_step(
    steps: &Receiver<Step>,
    wanted: Step,
    log: &std::path::Path,
    later: Duration,
) -> bool {
    let size = || std::fs::metadata(log).map_or(0, |data| data.len());
    let (before, deadline) = (size(), Instant::now() + Duration::from_millis(1500));
    while Instant::now() < deadline {
        let seen = steps.recv_timeout(Duration::from_millis(1)).ok();
        if seen == Some(wanted) || wanted == Step::Tool && size() > before {
            std::thread::sleep(later);
            return true;
        }
    }
    false
}

/// The numbers of completed and of interrupted tool calls on the tapes.
fn results(sandbox: &Sandbox) -> (usize, usize) {
    let (mut completed, mut unknown) = (0, 0);
    for file in std::fs::read_dir(sandbox.home().join("tapes")).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jsonl")
        {
            continue;
        }
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let entry: serde_json::Value = serde_json::from_str(line).unwrap();
            for result in entry["payload"]["results"].as_array().into_iter().flatten() {
                match result.as_str() {
                    Some("(no output)") => completed += 1,
                    Some(text) if text.starts_with("[interrupted: outcome unknown") => unknown += 1,
                    other => panic!("an unexpected result: {other:?}"),
                }
            }
        }
    }
    (completed, unknown)
}

// L1, L3, design §5: kills after each step of a turn with a tool call. The tool never runs twice.
#[test]
fn a_gateway_killed_between_any_two_steps_of_a_turn_with_a_tool_runs_no_tool_twice() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let (seen, steps) = channel();
    let for_model = seen.clone();
    model.forget_requests().answer_with(move |request| {
        writing_model(request, |step| {
            let _ = for_model.send(step);
        })
    });
    let delivered = CallbackServer::default();
    let callback = delivered.listen(move || {
        let _ = seen.send(Step::Delivered);
        200
    });
    let log = sandbox.workspace().join("log");
    // Six rounds cover every step under both policies.
    let start = |round| {
        start_gateway_with(
            &sandbox,
            &model,
            &[],
            &[
                ("BUB_WEBHOOK_ROLE", "owner"),
                ("BUB_POLICY_UNTRUSTED_CONTENT", "allow"),
                durability(round / 6),
            ],
        )
    };
    let mut clients = Clients::default();
    let mut hits: HashMap<Step, u64> = HashMap::new();
    for round in 0..rounds() {
        let mut gateway = start(round);
        steps.try_iter().for_each(drop);
        // Every second turn may finish, because a turn that is killed three times is answered with an error.
        let cut = [Step::FirstCall, Step::Tool, Step::SecondCall]
            [usize::try_from(round / 2 % 3).unwrap()];
        let wanted = if round % 2 == 0 { cut } else { Step::Delivered };
        let later = Duration::from_micros(round * 7919 % 9_000);
        while clients.open.len() + clients.accepted.len() < delivered.count() + 2 {
            clients.post(&gateway.address, &callback);
        }
        if await_step(&steps, wanted, &log, later) {
            *hits.entry(wanted).or_default() += 1;
        }
        gateway.kill();
    }
    let accepted = clients.accepted.len();
    assert!(
        accepted as u64 > rounds() / 8,
        "only {accepted} messages got in"
    );
    clients.finish(start(0), &callback, &delivered, &sandbox);
    let text = std::fs::read_to_string(log).unwrap();
    let lines: HashSet<_> = text.lines().collect();
    assert_eq!(
        lines.len(),
        text.lines().count(),
        "a tool ran twice: {text}"
    );
    // A call whose outcome is recorded has run. Any other may have run: its process was killed before the record.
    let (completed, unknown) = results(&sandbox);
    assert!(
        (completed..=completed + unknown).contains(&lines.len()),
        "{completed} calls completed, {unknown} interrupted, but {} ran",
        lines.len()
    );
    let replies = delivered.all();
    let written = replies
        .values()
        .flatten()
        .filter(|(_, reply)| reply == "written down")
        .count();
    println!("{} calls made, {written} replies after them", lines.len());
    // Last, because the accuracy of the kills depends on the load of the machine.
    println!("killed right after: {hits:?}");
    for step in [
        Step::FirstCall,
        Step::Tool,
        Step::SecondCall,
        Step::Delivered,
    ] {
        assert!(
            hits.get(&step).is_some_and(|count| *count > rounds() / 20),
            "{step:?}: {hits:?}"
        );
    }
}
