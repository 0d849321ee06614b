//! The content of the journal file, rewriting it, and its limits.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bub_gateway::{GatewayOptions, status};
use bub_kernel::{Error, ErrorKind};
use bub_tape::{Durability, fs::RealFs};
use bub_testkit::Faults;
use serde_json::{Value, json};

use crate::harness::{Echo, FakeChannel, GatewayFixture, options, options_on};

const HOUR: u64 = 60 * 60 * 1000;

fn now() -> u64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Writes a journal file with these records.
pub(crate) fn write(directory: &Path, records: &[Value]) {
    let line = |record: &Value| {
        let text = record.to_string();
        format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
    };
    let text: String = records.iter().map(line).collect();
    fs::write(directory.join("journal-0000000001.log"), text).unwrap();
}

/// Returns the records of the newest file.
fn read(directory: &Path) -> Vec<Value> {
    let names = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path());
    let newest = names
        .filter(|path| path.to_string_lossy().contains("/journal-"))
        .max()
        .unwrap();
    let text = fs::read_to_string(newest).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(&line[9..]).unwrap())
        .collect()
}

async fn edit_outbox(directory: &Path, request: Value) -> bub_kernel::Result<Value> {
    status::edit_offline_outbox(Arc::new(RealFs), directory, Durability::Os, &request).await
}

/// Opens and closes the journal, which rewrites it.
pub(crate) async fn rewrite(directory: &Path) {
    edit_outbox(directory, json!({"do": "drop", "id": "nothing"}))
        .await
        .unwrap_err();
}

/// Returns chat, state and number of attempts of each undelivered reply.
async fn outbox(directory: &Path) -> Vec<(String, String, u64)> {
    let list = edit_outbox(directory, json!({"do": "outbox"}))
        .await
        .unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let replies = list["replies"].as_array().unwrap().iter();
    replies
        .map(|it| {
            (
                text(&it["chat"]),
                text(&it["state"]),
                it["attempts"].as_u64().unwrap(),
            )
        })
        .collect()
}

fn reply(id: &str, at: u64) -> Value {
    let message = json!({"content": "hi", "channel": "lab", "chat_id": id});
    json!({"reply": {"id": id, "at": at, "channel": "lab", "chat": id, "print": 7, "message": message}})
}

fn accepted(id: &str) -> Value {
    let message = json!({"content": "wait", "channel": "lab", "chat_id": id});
    json!({"accepted": {"id": id, "at": now(), "session": "lab:a", "message": message}})
}

// L1: rewriting the journal, at every start and when it is too large, keeps all unfinished work: failed replies,
// attempts, sent replies, and keys.
#[tokio::test]
async fn a_journal_that_is_written_anew_forgets_nothing_unfinished() {
    let dir = tempfile::tempdir().unwrap();
    let unfinished = [
        json!({"key": {"key": "lab:k", "id": "m1", "at": now()}}),
        reply("r1", now()),
        json!({"attempt": {"id": "r1", "attempt": 3, "error": "down"}}),
        reply("r2", now()),
        json!({"attempt": {"id": "r2", "attempt": 1, "error": "no such chat"}}),
        json!({"undeliverable": {"id": "r2", "error": "no such chat"}}),
        accepted("m1"),
        json!({"started": {"id": "m1", "attempt": 2, "with": ["m0"]}}),
        json!({"replied": {"id": "m1", "prints": [1, 2], "has_spoken": true}}),
    ];
    let finished = [
        accepted("m2"),
        json!({"done": {"ids": ["m2"]}}),
        accepted("m3"),
        json!({"dropped": {"ids": ["m3"], "reason": "no"}}),
        reply("r3", now()),
        json!({"delivered": {"id": "r3"}}),
        reply("r4", now()),
        json!({"forgotten": {"id": "r4"}}),
        json!("mark"),
    ];
    write(dir.path(), &[&unfinished[..], &finished[..]].concat());
    for _ in 0..2 {
        rewrite(dir.path()).await;
        assert_eq!(read(dir.path()), unfinished);
    }
}

// L1: fingerprints of the first release, which have no version, still match: a reply that was sent before an upgrade is
// not sent again. Fingerprints of both versions can occur together.
#[tokio::test(start_paused = true)]
async fn a_reply_that_an_earlier_release_sent_is_not_sent_again() {
    // Hash of the first release for `echo: hi` in chat `m1` of `lab`.
    const LEGACY_PRINT: u64 = 0xa08e_29d7_cac4_c513;
    let dir = tempfile::tempdir().unwrap();
    let message = json!({"content": "hi", "channel": "lab", "chat_id": "m1"});
    let sent = json!({"content": "echo: hi", "channel": "lab", "chat_id": "m1"});
    let records = [
        json!({"accepted": {"id": "m1", "at": now(), "session": "lab:m1", "message": message}}),
        json!({"started": {"id": "m1", "attempt": 1, "with": []}}),
        json!({"reply": {
            "id": "r1", "at": now(), "inbound": "m1", "channel": "lab", "chat": "m1",
            "print": LEGACY_PRINT, "message": sent,
        }}),
        json!({"delivered": {"id": "r1"}}),
    ];
    for rewrites in 0..2 {
        write(dir.path(), &records);
        for _ in 0..rewrites {
            rewrite(dir.path()).await;
        }
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        assert_eq!(fixture.recovered.messages, 1);
        let channel = Arc::clone(fixture.channel(0));
        assert_eq!(fixture.echo.wait_asked(1).await, ["hi"]);
        fixture.stop().await;
        assert_eq!(channel.contents(), [""; 0]);
        rewrite(dir.path()).await;
        assert_eq!(read(dir.path()), [json!(null); 0]);
        fs::remove_dir_all(dir.path()).unwrap();
        fs::create_dir(dir.path()).unwrap();
    }
}

#[tokio::test]
async fn fingerprints_keep_their_versions_when_the_journal_is_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let records = [
        accepted("m1"),
        json!({"started": {"id": "m1", "attempt": 2, "with": [], "session": "lab:other"}}),
        json!({"replied": {"id": "m1", "prints": [1], "has_spoken": true}}),
        json!({"replied": {"id": "m1", "prints": [2, 3], "print_version": 1, "has_spoken": true}}),
    ];
    write(dir.path(), &records);
    for _ in 0..2 {
        rewrite(dir.path()).await;
        assert_eq!(read(dir.path()), records);
    }
}

// A failed reply stays failed: a start does not send it again.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_stays_given_up() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            reply("a", now()),
            json!({"undeliverable": {"id": "a", "error": "no such chat"}}),
        ],
    );
    for _ in 0..3 {
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        let channel = Arc::clone(fixture.channel(0));
        tokio::time::sleep(Duration::from_mins(1)).await;
        fixture.stop().await;
        assert_eq!(channel.contents(), [""; 0]);
        assert_eq!(
            outbox(dir.path()).await,
            [("a".to_owned(), "failed".to_owned(), 0)]
        );
    }
}

// Delivery fails permanently after a day or two hundred attempts, and not before.
#[tokio::test(start_paused = true)]
async fn a_failing_reply_is_given_up_after_a_day_or_two_hundred_attempts() {
    let cases = [
        ("a", 23, 1, false),
        ("b", 25, 1, true),
        ("c", 0, 198, false),
        ("d", 0, 199, true),
    ];
    let dir = tempfile::tempdir().unwrap();
    let records = cases.map(|(chat, hours, attempts, _)| {
        let error = json!({"attempt": {"id": chat, "attempt": attempts, "error": "down"}});
        [reply(chat, now() - hours * HOUR), error]
    });
    write(dir.path(), records.as_flattened());
    let fake = FakeChannel::new("lab");
    let later =
        Error::new(ErrorKind::Temporary, "down").with_retry_after(Duration::from_hours(1000));
    *fake.failures.lock().unwrap() = vec![later; cases.len()];
    let fixture = GatewayFixture::open(dir.path(), vec![fake]).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    fixture.stop().await;
    let replies = outbox(dir.path()).await;
    assert_eq!(replies.len(), cases.len());
    for ((chat, hours, attempts, is_failed), reply) in cases.into_iter().zip(replies) {
        let state = if is_failed { "failed" } else { "retrying" };
        assert_eq!(
            (reply.0.as_str(), reply.1.as_str()),
            (chat, state),
            "{hours} hours, {attempts} attempts"
        );
        assert_eq!(
            reply.2,
            attempts + 1,
            "{chat}: it is tried and the attempt is counted: {reply:?}"
        );
    }
}

// L5: at most 100,000 keys are kept, for at most a day. The oldest are removed first.
#[tokio::test]
async fn idempotency_keys_have_a_limit_and_an_age() {
    let key =
        |number: u64, at| json!({"key": {"key": format!("lab:{number}"), "id": "m", "at": at}});
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &[
            key(1, now() - 25 * HOUR),
            key(2, now() - 23 * HOUR),
            key(3, now()),
        ],
    );
    rewrite(dir.path()).await;
    let kept_keys = |directory| -> Vec<String> {
        read(directory)
            .iter()
            .map(|record| record["key"]["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kept_keys(dir.path()), ["lab:2", "lab:3"]);
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &(0..100_002)
            .map(|number| key(number, now()))
            .collect::<Vec<_>>(),
    );
    rewrite(dir.path()).await;
    let kept_keys = kept_keys(dir.path());
    assert_eq!(
        (
            kept_keys.len(),
            kept_keys[0].as_str(),
            kept_keys[99_999].as_str()
        ),
        (100_000, "lab:2", "lab:100001")
    );
}

// L5: a channel with too many undelivered replies accepts no messages until they are delivered. Other channels do.
#[tokio::test(start_paused = true)]
async fn undelivered_replies_of_a_channel_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let echo = Echo::new(vec![FakeChannel::new("lab"), FakeChannel::new("other")]);
    let fixture = GatewayFixture::with(
        GatewayOptions {
            queue: 2,
            ..options(dir.path())
        },
        echo,
    )
    .await;
    let channel = fixture.channel(0);
    let later = Error::new(ErrorKind::Temporary, "down").with_retry_after(Duration::from_hours(1));
    *channel.failures.lock().unwrap() = vec![later; 2];
    for chat in ["a", "b"] {
        channel.say(chat, "hi").await.unwrap().outcome().await;
    }
    let refused = channel.say("c", "hi").await.unwrap_err();
    assert!(
        refused.message().contains(
            "has 2 undelivered replies; see `bub outbox list`, or raise `gateway.max_unfinished`"
        ),
        "{refused}"
    );
    assert!(refused.retry_after().is_some());
    fixture
        .channel(1)
        .say("c", "hi")
        .await
        .unwrap()
        .outcome()
        .await;
    channel.wait_sent(2).await;
    // The journal records the deliveries a moment later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    channel.say("c", "hi").await.unwrap();
    channel.wait_sent(3).await;
    fixture.stop().await;
}

// L1: a new file that does not read back correctly is not used.
#[tokio::test(start_paused = true)]
async fn a_file_that_does_not_read_back_is_not_relied_on() {
    let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
    let options = options_on(faults.fs(), dir.path(), Durability::Os);
    let fixture = GatewayFixture::with(options, Echo::new(vec![FakeChannel::new("lab")])).await;
    let channel = fixture.channel(0);
    channel.say("a", "wait").await.unwrap();
    fixture.echo.wait_asked(1).await;
    // The write fails. The new file is created, but its content is corrupted.
    faults.fail_at(faults.steps() + 1, std::io::ErrorKind::Other);
    faults.garble_at(faults.steps() + 3);
    let refused = channel.say("b", "wait").await.unwrap_err();
    assert!(
        refused.message().contains("could not be read back"),
        "{refused}"
    );
    channel.say("b", "wait").await.unwrap();
    fixture.echo.permits.add_permits(2);
    channel.wait_sent(2).await;
    fixture.stop().await;
}
