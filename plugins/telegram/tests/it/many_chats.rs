//! Many concurrent chats with random failures: order per chat, rate limits, and no lost messages.
//!
//! The server stamps a message when it reads it, which a busy machine delays. The intervals are therefore longer than the
//! limits of the platform, by more than such a delay. The unit test of `rate_limit.rs` checks the real intervals with a
//! paused clock.
//!
//! Set `BUB_CROWD=1000` and `BUB_CROWD_SECONDS=60` for a long run.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bub_testkit::telegram::{BotServer, Fault, user_object};
use serde_json::json;

use crate::harness::{TelegramFixture, check, options};

#[expect(
    clippy::disallowed_methods,
    reason = "variables of the tests, no settings"
)]
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Returns the maximum number of moments within any window of length `time`. The moments are in order.
fn max_within(moments: &[Instant], time: Duration) -> usize {
    let within = |(at, from): (usize, &Instant)| {
        moments[at..]
            .iter()
            .take_while(|moment| **moment - *from < time)
            .count()
    };
    moments
        .iter()
        .enumerate()
        .map(within)
        .max()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_answered_in_order_within_the_limits_and_without_loss() {
    let chats = i64::try_from(setting("BUB_CROWD", 40)).unwrap();
    let seconds = setting("BUB_CROWD_SECONDS", 9);
    let (server, home) = (BotServer::start(), tempfile::tempdir().unwrap());
    let mut options = options(&server, home.path());
    // 31 messages take at least 1.8 s and two messages to a chat 2 s: the server may read one 0.8 s late.
    options.message_interval = Duration::from_millis(60);
    options.chat_interval = Duration::from_secs(2);
    options.allow_users = Some((1..=chats).map(|user| user.to_string()).collect());
    let mut seed = 7_u64;
    server.set_fault_fn(move |method, _| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        match (method, seed % 100) {
            // No lost responses to `sendMessage`: they cause duplicates, which another test covers.
            ("getUpdates", 0..=3) => Some(Fault::CutAfter),
            ("getUpdates" | "sendChatAction", 4..=9) | ("sendMessage", 2) => Some(Fault::Page(502)),
            ("sendMessage", 0..=1) => Some(Fault::Flood(1)),
            ("sendMessage", 3) => Some(Fault::Cut),
            ("sendMessage", 4..=6) => Some(Fault::Slow(Duration::from_millis(120))),
            ("sendMessage", 7) => Some(Fault::Refuse(
                400,
                "Bad Request: can't parse entities: by chance",
            )),
            _ => None,
        }
    });
    let fixture = TelegramFixture::with(options, home.path()).await;
    let began = Instant::now();
    // As many messages as can be answered in the time, with a margin for retries.
    let each = (seconds * 14 / u64::try_from(chats).unwrap()).max(1);
    for round in 0..each {
        for user in 1..=chats {
            let chat = json!({"id": user, "type": "private"});
            server.add_message(
                json!({"chat": chat, "from": user_object(user), "text": format!("say {round}")}),
            );
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let last = (each - 1).to_string();
    server
        .wait_for(|server| {
            (1..=chats)
                .all(|user| server.texts(user).iter().any(|text| text.ends_with(&last)))
                .then_some(())
        })
        .await;
    server.clear_faults();
    server.wait_until_confirmed().await;
    let took = began.elapsed();
    fixture.stop().await;
    check(&server);

    let mut moments: Vec<Instant> = Vec::new();
    let mut by_chat: HashMap<i64, Vec<Instant>> = HashMap::new();
    for call in server.calls_to("sendMessage") {
        moments.push(call.at);
        by_chat
            .entry(call.number("chat_id"))
            .or_default()
            .push(call.at);
    }
    let busiest = max_within(&moments, Duration::from_secs(1));
    assert!(busiest <= 30, "{busiest} messages in a second");
    let hasty = by_chat
        .values()
        .map(|moments| max_within(moments, Duration::from_secs(1)))
        .max()
        .unwrap();
    assert!(hasty <= 1, "{hasty} messages to a chat within a second");
    for user in 1..=chats {
        // Messages that arrive close together become one turn, which answers the last message.
        let texts = server.texts(user);
        let numbers: Vec<u64> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{user}: {numbers:?}");
        assert_eq!(
            numbers
                .iter()
                .collect::<std::collections::HashSet<_>>()
                .len(),
            numbers.len(),
            "{user}: {numbers:?}"
        );
    }
    println!(
        "{chats} chats, {each} messages each, {} calls in {took:?}, at most {busiest} in a second",
        moments.len()
    );
}
