//! The process can end at any moment without losing anything.

use std::{collections::HashMap, path::Path, sync::Arc};

use bub_gateway::GatewayOptions;
use bub_kernel::{Role, Sender};
use bub_tape::Durability;
use bub_testkit::{Faults, PowerLossEffect, run_process};

use crate::harness::{Echo, FakeChannel, GatewayFixture, options, options_on};

fn on(faults: &Faults, dir: &Path, durability: Durability) -> GatewayOptions {
    options_on(faults.fs(), dir, durability)
}

/// Runs messages of two chats until the crash. Returns the accepted messages and the sent replies.
async fn until_crash(faults: &Faults, dir: &Path) -> Option<(Vec<String>, Vec<String>)> {
    let echo = Echo::new(vec![FakeChannel::new("lab")]);
    let fixture = GatewayFixture::try_with(on(faults, dir, Durability::Always), echo, &["all"])
        .await
        .ok()?;
    let channel = Arc::clone(fixture.channel(0));
    let mut accepted = Vec::new();
    for number in 0..3 {
        for chat in ["a", "b"] {
            let text = format!("{chat}{number}");
            if let Ok(receipt) = channel.say(chat, &text).await {
                accepted.push(format!("echo: {text}"));
                if number == 1 {
                    tokio::select! {
                        _ = receipt.outcome() => {}
                        () = tokio::time::sleep(std::time::Duration::from_secs(3)) => {}
                    }
                }
            }
        }
    }
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let sent = channel.contents();
    if !faults.has_crashed() {
        fixture.stop().await;
    }
    Some((accepted, sent))
}

// L1: after a crash at any step of the journal, every accepted message is answered. A reply is sent twice only if the
// process died between sending it and recording that.
#[test]
fn a_crash_at_any_step_loses_nothing() {
    let faults = Faults::new();
    let dir = tempfile::tempdir().unwrap();
    let (accepted, sent) = run_process(until_crash(&faults, dir.path())).unwrap();
    assert_eq!((accepted.len(), sent.len()), (6, 6));
    let steps = faults.steps();
    assert!(steps > 20, "{steps}");
    for step in 1..=steps {
        let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
        faults.crash_at(step);
        let (accepted, before) = run_process(until_crash(&faults, dir.path())).unwrap_or_default();
        let after = run_process(async {
            let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
            let channel = Arc::clone(fixture.channel(0));
            fixture.stop().await;
            channel.contents()
        });
        let mut counts: HashMap<String, usize> = HashMap::new();
        for text in before.iter().chain(&after) {
            *counts.entry(text.clone()).or_default() += 1;
        }
        for text in &accepted {
            assert!(
                counts.contains_key(text),
                "step {step}: {text} is lost; {counts:?}"
            );
        }
        let doubled: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
        // One batch of the journal may contain the deliveries of both chats.
        assert!(
            doubled.len() <= 2 && doubled.iter().all(|(_, count)| **count == 2),
            "step {step}: {doubled:?}"
        );
        let fixture = run_process(GatewayFixture::open(
            dir.path(),
            vec![FakeChannel::new("lab")],
        ));
        assert_eq!(
            (fixture.recovered.messages, fixture.recovered.replies),
            (0, 0),
            "step {step}"
        );
    }
}

// L1: with durability `always`, a power loss loses no accepted message, whatever remains of unsynced data.
#[test]
fn a_loss_of_power_loses_nothing_that_was_accepted() {
    for effect in PowerLossEffect::ALL {
        let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
        faults.track_durability(dir.path()).unwrap();
        run_process(async {
            let echo = Echo::new(vec![FakeChannel::new("lab")]);
            let fixture =
                GatewayFixture::with(on(&faults, dir.path(), Durability::Always), echo).await;
            for chat in ["a", "b", "c"] {
                fixture.channel(0).say(chat, "wait").await.unwrap();
            }
            // Nothing is being written any more.
            fixture.echo.wait_asked(3).await;
            faults.crash_at(faults.steps() + 1);
            fixture.channel(0).say("d", "unheard").await.unwrap_err();
        });
        faults.cut_power(dir.path(), effect).unwrap();
        let fixture = run_process(GatewayFixture::open(
            dir.path(),
            vec![FakeChannel::new("lab")],
        ));
        assert_eq!(fixture.recovered.messages, 3, "{effect:?}");
    }
}

// The same for a power loss at any step of the recovery: the new file is durable before the old one is removed.
#[test]
fn a_loss_of_power_at_any_step_of_a_start_loses_nothing() {
    let fakes = || Echo::new(vec![FakeChannel::new("lab")]);
    for (effect, step) in PowerLossEffect::ALL
        .into_iter()
        .flat_map(|effect| (1..=8).map(move |step| (effect, step)))
    {
        let dir = tempfile::tempdir().unwrap();
        run_process(async {
            let fixture = GatewayFixture::with(options(dir.path()), fakes()).await;
            for chat in ["a", "b", "c"] {
                fixture.channel(0).say(chat, "wait").await.unwrap();
            }
        });
        let faults = Faults::new();
        faults.track_durability(dir.path()).unwrap();
        faults.crash_at(step);
        run_process(async {
            let fixture = GatewayFixture::try_with(
                on(&faults, dir.path(), Durability::Always),
                fakes(),
                &["all"],
            )
            .await;
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            drop(fixture);
        });
        assert!(faults.has_crashed(), "step {step}");
        faults.cut_power(dir.path(), effect).unwrap();
        let fixture = run_process(GatewayFixture::open(
            dir.path(),
            vec![FakeChannel::new("lab")],
        ));
        assert_eq!(fixture.recovered.messages, 3, "{effect:?} at step {step}");
    }
}

// L1: a failed write or fsync is not acknowledged. A new file replaces the old one, and nothing is lost or sent twice.
#[tokio::test(start_paused = true)]
async fn a_failing_disk_stops_acknowledgements_until_it_is_rewritten() {
    let faults = Faults::new();
    let dir = tempfile::tempdir().unwrap();
    let echo = Echo::new(vec![FakeChannel::new("lab")]);
    let fixture = GatewayFixture::with(on(&faults, dir.path(), Durability::Always), echo).await;
    let channel = fixture.channel(0);
    channel.say("a", "1").await.unwrap().outcome().await;
    // One failure: a new file is written and read back, and the sender notices nothing.
    faults.fail_syncs(1);
    channel.say("a", "2").await.unwrap().outcome().await;
    // The disk is full: the message is rejected with the reason, and accepted once there is space.
    faults.set_disk_space(Some(0));
    let refused = channel.say("a", "3").await.unwrap_err();
    assert!(
        refused.message().contains("cannot write the journal"),
        "{refused}"
    );
    let status =
        bub_gateway::status::send_request(dir.path(), &serde_json::json!({"do": "status"}))
            .await
            .unwrap();
    assert!(
        status.unwrap()["channels"]
            .to_string()
            .contains("cannot write the journal")
    );
    faults.set_disk_space(None);
    channel.say("a", "3").await.unwrap().outcome().await;
    assert_eq!(channel.wait_sent(3).await.len(), 3);
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    assert_eq!(
        (fixture.recovered.messages, fixture.recovered.replies),
        (0, 0)
    );
    fixture.stop().await;
}

// L1: a message is not finished until its failure is reported. This happens once the journal can be written, at the
// latest after the next start, which retries the message.
#[test]
fn a_failure_that_nobody_hears_of_leaves_the_message_unfinished() {
    for comes_back in [true, false] {
        let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
        run_process(async {
            let echo = Echo::new(vec![FakeChannel::new("lab")]);
            let fixture = GatewayFixture::with(on(&faults, dir.path(), Durability::Os), echo).await;
            fixture.channel(0).say("a", "fail, wait").await.unwrap();
            fixture.echo.wait_asked(1).await;
            faults.set_disk_space(Some(0));
            fixture.echo.permits.add_permits(1);
            // The paused clock advances only when all tasks are idle.
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            if comes_back {
                faults.set_disk_space(None);
                wait_notified(&fixture).await;
            }
            fixture.stop().await;
        });
        run_process(async {
            let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
            assert_eq!(fixture.recovered.messages, usize::from(!comes_back));
            if !comes_back {
                fixture.echo.permits.add_permits(1);
                wait_notified(&fixture).await;
                assert!(
                    fixture.echo.attempts.lock().unwrap()[0].number > 1,
                    "attempts are counted"
                );
            }
            fixture.stop().await;
        });
    }
}

// L1, docs/reliability.md: a failure is reported once. The message is not retried, even if nothing could be written
// after the notice.
#[test]
fn a_message_whose_failure_was_told_is_not_tried_again() {
    for (records, is_killed) in (0..5).flat_map(|records| [(records, false), (records, true)]) {
        let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
        let notices = run_process(async {
            let lab = FakeChannel {
                debounce: true,
                ..FakeChannel::new("lab")
            };
            let fixture = GatewayFixture::with(
                on(&faults, dir.path(), Durability::Os),
                Echo::new(vec![lab]),
            )
            .await;
            for text in ["fail", "and wait"] {
                fixture.channel(0).say("a", text).await.unwrap();
            }
            fixture.echo.wait_asked(1).await;
            faults.fill_disk_from(faults.steps() + 1 + records);
            fixture.echo.permits.add_permits(1);
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            let notices = fixture.channel(0).contents();
            assert!(
                notices.iter().all(|text| text.contains("was not answered")),
                "{notices:?}"
            );
            if is_killed {
                faults.crash_at(faults.steps() + 1);
            } else {
                fixture.stop().await;
            }
            notices
        });
        faults.clear_faults();
        assert_eq!(
            notices.len(),
            usize::from(records > 0),
            "{records}: the notice is written before it is sent"
        );
        run_process(async {
            let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
            assert_eq!(
                fixture.recovered.messages,
                if records > 0 { 0 } else { 2 },
                "{records}, {is_killed}"
            );
        });
    }
}

// L4: messages that steered a turn when the process died steer it again before it resumes, in order and merged as
// before. Messages that the turn does not read get their own turns.
#[test]
fn what_steered_a_killed_turn_is_given_to_it_again() {
    for takes in [true, false] {
        let (faults, dir) = (Faults::new(), tempfile::tempdir().unwrap());
        let lab = || {
            let lab = FakeChannel {
                debounce: true,
                ..FakeChannel::new("lab")
            };
            *lab.admission.lock().unwrap() = Some(bub_kernel::Admission::new(
                bub_kernel::AdmissionDecision::Steer,
            ));
            vec![lab]
        };
        run_process(async {
            let fixture =
                GatewayFixture::with(on(&faults, dir.path(), Durability::Os), Echo::new(lab()))
                    .await;
            fixture.channel(0).say("a", "wait").await.unwrap();
            fixture.echo.wait_asked(1).await;
            for texts in [&["one", "two"][..], &["three"]] {
                for text in texts {
                    fixture.channel(0).say("a", text).await.unwrap();
                }
                fixture.echo.inbox.arrived.notified().await;
            }
            faults.crash_at(faults.steps() + 1);
            fixture.channel(0).say("a", "unheard").await.unwrap_err();
        });
        for process_number in [2, 3] {
            run_process(async {
                let echo = Echo::new(lab());
                echo.take_steering
                    .store(takes, std::sync::atomic::Ordering::SeqCst);
                let fixture = GatewayFixture::with(options(dir.path()), echo).await;
                // The third process reads the file that the second one rewrote.
                assert_eq!(fixture.recovered.messages, 4, "process {process_number}");
                assert_eq!(fixture.echo.wait_asked(1).await, ["wait"]);
                assert_eq!(
                    fixture
                        .framework
                        .steering_inbox()
                        .unwrap()
                        .count(&"lab:a".into()),
                    2
                );
                if process_number == 2 {
                    return;
                }
                fixture.echo.permits.add_permits(1);
                if takes {
                    fixture.channel(0).wait_sent(1).await;
                } else {
                    fixture.channel(0).wait_sent(3).await;
                    let attempts: Vec<_> = fixture
                        .echo
                        .attempts
                        .lock()
                        .unwrap()
                        .iter()
                        .map(|attempt| attempt.number)
                        .collect();
                    assert_eq!(attempts, [3, 2, 2], "each may be on the tape");
                }
                let expected = if takes {
                    "echo: wait + one\ntwo + three"
                } else {
                    "echo: wait"
                };
                assert_eq!(fixture.channel(0).contents()[0], expected);
                assert!(takes || fixture.channel(0).contents()[2] == "echo: three");
                fixture.stop().await;
            });
        }
        run_process(async {
            let fixture = GatewayFixture::open(dir.path(), lab()).await;
            assert_eq!(
                fixture.recovered.messages, 0,
                "each is settled: takes {takes}"
            );
        });
    }
}

async fn wait_notified(fixture: &GatewayFixture) {
    let sent = fixture.channel(0).wait_sent(1).await;
    assert!(sent[0].content.contains("was not answered"), "{sent:?}");
}

// L1: messages of a disabled channel are kept until it is enabled again. Other channels are not affected.
#[tokio::test(start_paused = true)]
async fn what_a_channel_accepted_waits_until_it_is_enabled_again() {
    let dir = tempfile::tempdir().unwrap();
    let fakes = || vec![FakeChannel::new("lab"), FakeChannel::new("other")];
    let fixture = GatewayFixture::open(dir.path(), fakes()).await;
    fixture.channel(0).say("a", "wait").await.unwrap();
    fixture.stop().await;
    for _ in 0..2 {
        let fixture = GatewayFixture::try_with(options(dir.path()), Echo::new(fakes()), &["other"])
            .await
            .unwrap();
        assert_eq!(fixture.recovered.messages, 1);
        fixture
            .channel(1)
            .say("b", "hello")
            .await
            .unwrap()
            .outcome()
            .await;
        assert_eq!(
            fixture.echo.wait_asked(1).await.len(),
            1,
            "only what can be answered is asked"
        );
        fixture.stop().await;
    }
    let fixture = GatewayFixture::open(dir.path(), fakes()).await;
    fixture.echo.permits.add_permits(1);
    assert_eq!(
        fixture.channel(0).wait_sent(1).await[0].content,
        "echo: wait"
    );
    fixture.stop().await;
}

// Design §5: the sender and the number of the attempt are known after a restart.
#[test]
fn a_redelivered_message_is_what_it_was() {
    let faults = Faults::new();
    let dir = tempfile::tempdir().unwrap();
    let echo = Echo::new(vec![FakeChannel::new("lab")]);
    let receipt = run_process(async {
        let fixture = GatewayFixture::with(on(&faults, dir.path(), Durability::Os), echo).await;
        let receipt = fixture
            .channel(0)
            .say_as((Role::Member, "bob"), "a", "wait", None)
            .await
            .unwrap();
        fixture.echo.wait_asked(1).await;
        faults.crash_at(faults.steps() + 1);
        fixture.channel(0).say("a", "unheard").await.unwrap_err();
        receipt
    });
    run_process(redelivered(dir.path(), &receipt));
}

async fn redelivered(dir: &Path, receipt: &bub_kernel::InboundReceipt) {
    let fixture = GatewayFixture::open(dir, vec![FakeChannel::new("lab")]).await;
    assert_eq!(fixture.recovered.messages, 1);
    fixture.echo.permits.add_permits(1);
    let sent = fixture.channel(0).wait_sent(1).await;
    assert_eq!(sent[0].message_id.as_ref(), receipt.message_id());
    let attempt = fixture.echo.attempts.lock().unwrap()[0].clone();
    assert_eq!(
        (&attempt.message_id, attempt.number),
        (receipt.message_id().unwrap(), 2)
    );
    assert!(attempt.is_durable);
    let sender = fixture.echo.senders.lock().unwrap()[0].clone();
    let bob = Sender {
        role: Role::Member,
        channel: "lab".to_owned(),
        chat_id: "a".to_owned(),
        id: "bob".to_owned(),
        name: String::new(),
    };
    assert_eq!(sender, bob);
    fixture.stop().await;
}

// L5: the size of the journal depends on unfinished work, not on history.
#[tokio::test(start_paused = true)]
async fn the_journal_does_not_grow_with_history() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = fixture.channel(0);
    let long = "x".repeat(100_000);
    for _ in 0..400 {
        channel.say("a", &long).await.unwrap().outcome().await;
    }
    let size = || {
        let files = std::fs::read_dir(dir.path()).unwrap();
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    assert!(size() < 18 * 1024 * 1024, "{}", size());
    fixture.stop().await;
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    assert!(size() < 1024, "{}", size());
    fixture.stop().await;
}

// A torn last line was never acknowledged. Damaged lines are reported, their file is kept, and the rest is recovered.
#[test]
fn damage_is_reported_and_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let echo = Echo::new(vec![FakeChannel::new("lab")]);
    run_process(async {
        let fixture = GatewayFixture::with(on(&faults, dir.path(), Durability::Os), echo).await;
        for chat in ["a", "b", "c"] {
            fixture.channel(0).say(chat, "wait").await.unwrap();
        }
        fixture.echo.wait_asked(3).await;
        faults.crash_at(faults.steps() + 1);
        fixture.channel(0).say("d", "lost").await.unwrap_err();
    });
    let journal = || {
        let files = std::fs::read_dir(dir.path()).unwrap();
        let mut logs: Vec<_> = files
            .map(|file| file.unwrap().path())
            .filter(|path| {
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with("journal-")
            })
            .collect();
        logs.sort();
        logs.pop().unwrap()
    };
    let path = journal();
    let text = std::fs::read_to_string(&path).unwrap();
    let torn = text.len() - text.rfind('\n').unwrap() - 1;
    assert!(torn > 0);
    std::fs::write(&path, text.replacen("lab:b", "lab:B", 1)).unwrap();
    let recovered = run_process(async {
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        let recovered = fixture.recovered;
        fixture.echo.permits.add_permits(2);
        fixture.channel(0).wait_sent(2).await;
        fixture.stop().await;
        recovered
    });
    assert_eq!((recovered.messages, recovered.damaged_lines), (2, 1));
    assert_eq!(recovered.torn_bytes, torn);
    assert!(std::fs::read_dir(dir.path()).unwrap().any(|file| {
        file.unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("damaged-")
    }));
}

// Design §5: a message that repeatedly ends the process is abandoned, and its sender is notified.
#[test]
fn a_message_that_ends_the_process_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    run_process(async {
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        fixture.channel(0).say("a", "wait").await.unwrap();
        fixture.echo.wait_asked(1).await;
    });
    for _ in 0..4 {
        run_process(async {
            let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
            fixture.echo.wait_asked(1).await;
        });
    }
    run_process(async {
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        let sent = fixture.channel(0).wait_sent(1).await;
        assert!(sent[0].content.contains("will not be retried"), "{sent:?}");
        assert!(fixture.echo.asked.borrow().is_empty());
        fixture.stop().await;
        let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
        assert_eq!(
            (fixture.recovered.messages, fixture.recovered.replies),
            (0, 0)
        );
        fixture.stop().await;
    });
}
