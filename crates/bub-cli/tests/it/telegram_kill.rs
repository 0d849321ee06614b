//! Kills the gateway between an update and its answer: each message is answered once. One case cannot be detected: the
//! platform accepted the answer, and the process ended before it received the response.
//!
//! `BUB_KILL_ROUNDS=1000` runs the long form.

use std::time::{Duration, Instant};

use bub_testkit::{
    model::{ModelServer, Pace, Reply},
    telegram::BotServer,
};

use crate::{
    sandbox::{Sandbox, signal, wait_until},
    telegram::{command, start_with},
};

/// Delay after which the bot has normally recorded the response to a call.
const RECORD_DELAY: Duration = Duration::from_millis(250);

/// Text of both notices about a message whose turns were killed too often: of the agent and of the gateway.
const ABANDONED_TEXT: &str = "bub stopped unexpectedly";

/// A part of the answer, as the server executed it.
struct SentPart {
    /// Number of the process that sent the part.
    process: usize,
    /// 0 for the first part, 1 for the second.
    part: usize,
    at: Instant,
}

/// Returns the parts that were sent to a chat, in the order of the processes that sent them.
fn sent_parts(server: &BotServer, chat: i64) -> Vec<SentPart> {
    let mut parts: Vec<_> = server
        .calls_to("sendMessage")
        .into_iter()
        .filter(|call| call.is_done && call.number("chat_id") == chat)
        .map(|call| SentPart {
            process: call.base_path.trim_matches('/').parse().unwrap(),
            part: usize::from(call.text("text").contains("word59")),
            at: call.at,
        })
        .collect();
    // The server can handle a call of a killed process after the first calls of the next one. The sort is stable.
    parts.sort_by_key(|part| part.process);
    parts
}

// L1: the kill matrix through the platform. Each message has its own chat, so that each chat shows one answer.
#[test]
fn a_bot_killed_at_any_moment_answers_each_message_and_once() {
    let rounds: i64 = std::env::var("BUB_KILL_ROUNDS").map_or(60, |rounds| rounds.parse().unwrap());
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    // In two parts.
    model.otherwise(Reply::deltas(
        (0..60).map(|at| format!("{} word{at} ", "x".repeat(100))),
    ));
    let users: Vec<String> = (1..=2 * rounds).map(|user| user.to_string()).collect();
    // Each process has its own base URL, so that the server knows which process made a call.
    let start = |process: usize| {
        let mut command = command(&sandbox, &server, &model);
        command
            .env(
                "BUB_TELEGRAM_API_BASE",
                format!("{}/{process}", server.url()),
            )
            .env("BUB_TELEGRAM_ALLOW_USERS", users.join(","))
            .env("BUB_DEBOUNCE_SECONDS", "0");
        start_with(command)
    };
    let mut kills = Vec::new();
    for round in 0..rounds {
        let mut gateway = start(kills.len());
        let requests = server.requests();
        for user in [2 * round + 1, 2 * round + 2] {
            server.send_private(user, "hello");
        }
        let moment = round * 7919 % 300;
        // Most kills count from the first request, because a busy machine would otherwise be killed only during its
        // start. An answer takes a second, because its parts keep the interval that the platform requires.
        if moment > 60 {
            wait_until("a call", || server.requests() > requests);
        }
        let far = if round % 3 == 0 { 900 } else { 0 };
        std::thread::sleep(Duration::from_millis((moment + far).unsigned_abs()));
        kills.push(Instant::now());
        gateway.child.kill().unwrap();
        gateway.child.wait().unwrap();
    }
    let mut gateway = start(kills.len());
    // A busy machine may be too slow for an answer between three kills; then the user gets a notice.
    let is_abandoned = |texts: &[String]| texts.iter().any(|text| text.contains(ABANDONED_TEXT));
    let is_answered = |user: i64| {
        let texts = server.texts(user);
        is_abandoned(&texts)
            || texts.iter().any(|text| text.contains("word0 "))
                && texts.iter().any(|text| text.contains("word59"))
    };
    wait_until("all is answered", || (1..=2 * rounds).all(is_answered));
    wait_until("all is confirmed", || server.pending() == 0);
    signal(&gateway.child, "TERM");
    assert_eq!(gateway.child.wait().unwrap().code(), Some(0));

    let (mut parts_twice, mut late_parts, mut abandoned) = (0, 0, 0);
    for user in 1..=2 * rounds {
        let texts = server.texts(user);
        if is_abandoned(&texts) {
            abandoned += 1;
            continue;
        }
        let starts = texts.iter().filter(|text| text.contains("word0 ")).count();
        let ends = texts.iter().filter(|text| text.contains("word59")).count();
        assert_eq!(
            texts.len(),
            starts + ends,
            "only parts of the answer: {texts:?}"
        );
        // A part may come twice only if a kill hit the process between the request and its response. Then it was the
        // last part that the process sent, and a later process sends it again.
        for pair in sent_parts(&server, user).windows(2) {
            let [first, second] = pair else { continue };
            assert!(
                first.part < second.part
                    || first.part == second.part && first.process < second.process,
                "chat {user}: process {} sent part {}, then process {} sent part {}",
                first.process,
                first.part,
                second.process,
                second.part
            );
            if first.part == second.part {
                parts_twice += 1;
                let waited = kills[first.process].saturating_duration_since(first.at);
                late_parts += u32::from(waited > RECORD_DELAY);
            }
        }
    }
    println!(
        "{rounds} kills, {} messages, {parts_twice} parts came twice, {late_parts} of them late, {abandoned} abandoned",
        2 * rounds
    );
    // On a busy machine, the process may be killed long after the response arrived and before it ran again.
    assert!(
        i64::from(late_parts) <= rounds / 3,
        "{late_parts} parts came twice in {rounds} rounds, although the process had time to record the response"
    );
    assert!(abandoned <= rounds, "{abandoned} messages were abandoned");
    assert_eq!(
        sandbox.bub(["outbox", "list"]).ok(),
        "no undelivered replies\n"
    );
    sandbox.bub(["tape", "check"]).ok();
    assert_eq!(server.violations(), Vec::<String>::new());
}

// L1: a partial answer that was visible when the process ended is completed in the same message.
#[test]
fn a_bot_killed_while_an_answer_grows_finishes_it_in_the_same_message() {
    const ROUNDS: i64 = 6;
    let (sandbox, server, model) = (Sandbox::new(), BotServer::start(), ModelServer::start());
    let words: Vec<String> = (0..600).map(|at| format!("w{at} ")).collect();
    let whole = words.concat().trim_end().to_owned();
    let users: Vec<String> = (1..=ROUNDS).map(|user| user.to_string()).collect();
    let start = || {
        let mut command = command(&sandbox, &server, &model);
        command
            .env("BUB_TELEGRAM_ALLOW_USERS", users.join(","))
            .env("BUB_DEBOUNCE_SECONDS", "0");
        start_with(command)
    };
    for user in 1..=ROUNDS {
        let pace = Pace::stopped();
        model
            .script(Reply::deltas(words.clone()).paced(&pace))
            .otherwise(Reply::deltas(words.clone()));
        let mut gateway = start();
        server.send_private(user, "tell me");
        // The answer grows by a word per request.
        wait_until("a part of the answer", || {
            pace.allow(1);
            !server.texts(user).is_empty()
        });
        // By now it also knows the message of that part.
        std::thread::sleep(Duration::from_millis(30 * user.unsigned_abs()));
        gateway.child.kill().unwrap();
        gateway.child.wait().unwrap();
        assert_ne!(
            server.texts(user),
            [whole.as_str()],
            "it was killed before the end"
        );
        let mut gateway = start();
        wait_until("the whole answer, and nothing else", || {
            server.texts(user) == [whole.as_str()]
        });
        wait_until("that it knows", || {
            sandbox.bub(["outbox", "list"]).ok() == "no undelivered replies\n"
        });
        signal(&gateway.child, "TERM");
        assert_eq!(gateway.child.wait().unwrap().code(), Some(0));
    }
}
