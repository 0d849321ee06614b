//! SIGKILL at any moment between a message and its reply: what was accepted is answered, once.
//!
//! `BUB_KILL_ROUNDS=2000` is the long form.
#![expect(clippy::print_stdout, reason = "figures of the long form")]

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use bub_testkit::model::{ModelServer, Reply, Request};

use crate::{
    gateway_client::{CallbackServer, GatewayClient, post},
    sandbox::Sandbox,
};

const CHATS: u64 = 5;

/// Both policies take turns: what one life wrote, the next reads.
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

/// What clients know, and have yet to ask again about.
#[derive(Default)]
struct Clients {
    /// The id of each message that was accepted, by its key.
    accepted: HashMap<u64, String>,
    /// Posted without an answer: a client cannot know better than to post it again, with the same key.
    open: Vec<u64>,
    last: u64,
}

impl Clients {
    /// Posts what is open, or else something new.
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

    /// Nobody kills any more: everything is accepted and answered, and the house is in order.
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

// L1: accepted = answered, none lost; a reply that is seen twice is the same delivery, cut off before it was written down.
#[test]
fn a_gateway_killed_at_any_moment_loses_and_doubles_nothing() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("as you say"));
    let delivered = CallbackServer::default();
    let callback = delivered.listen(|| 200);
    let mut clients = Clients::default();
    for round in 0..rounds() {
        let mut gateway = GatewayClient::with(&sandbox, &model, &[], &[durability(round)]);
        let address = gateway.address.clone();
        // Moments spread evenly, from before the first message to well into the work.
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
        GatewayClient::start(&sandbox, &model),
        &callback,
        &delivered,
        &sandbox,
    );
}

/// A step of a turn that somebody outside can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The model is asked for the first time, and asks for a tool.
    Asked,
    /// The tool has done its work.
    Tool,
    /// The model is asked with the result.
    AskedAgain,
    /// A reply arrives.
    Delivered,
}

/// A model that has a line with the message's key written, and then says so.
pub(crate) fn writing(request: &Request, told: impl Fn(Step)) -> Reply {
    let messages = request.json()["messages"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let last = messages
        .last()
        .and_then(|last| last["content"].as_str())
        .unwrap_or_default();
    // After a step with tools the last message asks to go on.
    let key: Option<u64> = last
        .rsplit("message ")
        .next()
        .and_then(|key| key.trim().parse().ok());
    told(if key.is_some() {
        Step::Asked
    } else {
        Step::AskedAgain
    });
    let Some(key) = key else {
        return Reply::text("written down");
    };
    Reply::new().call(
        "call",
        "bash",
        &format!(r#"{{"cmd": "echo {key} >> log"}}"#),
    )
}

/// Waits for a step, and a little longer; not for ever, because an earlier life may have done it already.
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

// L1, L3, design §5: the same with a tool in the turn, which never runs twice; the kill follows each step in turn.
#[test]
fn a_gateway_killed_between_any_two_steps_of_a_turn_with_a_tool_runs_no_tool_twice() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let (seen, steps) = channel();
    let for_model = seen.clone();
    model.forget_requests().answer_with(move |request| {
        writing(request, |step| {
            let _ = for_model.send(step);
        })
    });
    let delivered = CallbackServer::default();
    let callback = delivered.listen(move || {
        let _ = seen.send(Step::Delivered);
        200
    });
    let log = sandbox.workspace().join("log");
    // Six rounds cut at every step: each under both policies.
    let start = |round| {
        GatewayClient::with(
            &sandbox,
            &model,
            &[],
            &[("BUB_WEBHOOK_ROLE", "owner"), durability(round / 6)],
        )
    };
    let mut clients = Clients::default();
    let mut hits: HashMap<Step, u64> = HashMap::new();
    for round in 0..rounds() {
        let mut gateway = start(round);
        steps.try_iter().for_each(drop);
        // Every second one may come to its end: what is killed three times over is answered with an apology.
        let cut =
            [Step::Asked, Step::Tool, Step::AskedAgain][usize::try_from(round / 2 % 3).unwrap()];
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
    assert!(
        lines.len() > accepted / 2,
        "only {} of {accepted} calls were made",
        lines.len()
    );
    let replies = delivered.all();
    let written = replies
        .values()
        .flatten()
        .filter(|(_, reply)| reply == "written down")
        .count();
    println!("{} calls made, {written} replies after them", lines.len());
    // Last: how well the kills were aimed depends on how busy the computer is, the rest must not.
    println!("killed right after: {hits:?}");
    for step in [Step::Asked, Step::Tool, Step::AskedAgain, Step::Delivered] {
        assert!(
            hits.get(&step).is_some_and(|count| *count > rounds() / 20),
            "{step:?}: {hits:?}"
        );
    }
}
