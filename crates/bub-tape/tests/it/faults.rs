//! Failures of the file system at every step of an operation.

use std::{io, path::Path, sync::Arc};

use bub_tape::{
    Durability, Entry, EntryId, EntryRange, FileStore, MergeBack, ResetRequest, Sidecar, Tape,
    TapeError, TapeErrorKind, TapeName, TapeStore, recover_forks,
};
use bub_testkit::{Faults, PowerLossEffect};
use futures_util::TryStreamExt as _;
use serde_json::json;

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn numbered(number: usize) -> Entry {
    Entry::message("user", format!("{number} 你好"))
}

/// Returns the user messages on the tape and checks that their ids ascend.
async fn messages(root: &Path) -> Vec<String> {
    let store = FileStore::new(root, Durability::Os);
    let entries: Vec<Entry> = store
        .read(&name(), EntryRange::ALL)
        .try_collect()
        .await
        .unwrap();
    assert!(
        entries.windows(2).all(|pair| pair[0].id < pair[1].id),
        "ids do not ascend"
    );
    let texts = entries
        .iter()
        .filter_map(|entry| entry.payload.get("content")?.as_str());
    texts.map(str::to_owned).collect()
}

/// Runs a scenario with a crash at each of its steps, and calls `check` after each crash.
async fn crash_everywhere<T>(
    prepare: impl AsyncFn(&Path),
    scenario: impl AsyncFn(Arc<dyn TapeStore>) -> T,
    check: impl AsyncFn(&Path, T, u64),
) {
    let set_up = |store: FileStore, faults: &Faults, step| {
        faults.crash_at(step);
        store
    };
    crash_everywhere_in(set_up, prepare, scenario, check).await;
}

/// Like [`crash_everywhere`]. `set_up` plans the crash and sets up the store.
async fn crash_everywhere_in<T>(
    set_up: impl Fn(FileStore, &Faults, u64) -> FileStore,
    prepare: impl AsyncFn(&Path),
    scenario: impl AsyncFn(Arc<dyn TapeStore>) -> T,
    check: impl AsyncFn(&Path, T, u64),
) {
    let mut step = 1;
    loop {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path()).await;
        let faults = Faults::new();
        let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
        let outcome = scenario(Arc::new(set_up(store, &faults, step))).await;
        let crashed = faults.has_crashed();
        check(root.path(), outcome, step).await;
        if !crashed {
            assert!(step > 8, "the scenario has no steps to crash at");
            return;
        }
        step += 1;
    }
}

async fn prepare_three(root: &Path) {
    let store = FileStore::new(root, Durability::Os);
    for number in 0..3 {
        store.append(&name(), vec![numbered(number)]).await.unwrap();
    }
}

// L1, W-2, W-3: a batch is written completely or not at all, and acknowledged batches are never lost.
#[tokio::test]
async fn a_crash_at_any_step_of_an_append_loses_nothing_acknowledged() {
    let scenario = async |store: Arc<dyn TapeStore>| {
        let mut acknowledged = Vec::new();
        for number in [3, 5, 7] {
            let batch = vec![numbered(number), numbered(number + 1)];
            if store.append(&name(), batch).await.is_err() {
                break;
            }
            acknowledged.extend([number, number + 1]);
        }
        acknowledged
    };
    crash_everywhere(prepare_three, scenario, async |root, acknowledged, step| {
        let seen = messages(root).await;
        let expected: Vec<_> = (0..3)
            .chain(acknowledged)
            .map(|number| format!("{number} 你好"))
            .collect();
        assert!(
            seen.starts_with(&expected),
            "step {step}: {seen:?} lacks {expected:?}"
        );
        assert_eq!(seen.len() % 2, 1, "step {step}: a reader saw half a batch");
        let store = FileStore::new(root, Durability::Os);
        store.append(&name(), vec![numbered(99)]).await.unwrap();
        let after = messages(root).await;
        assert!(
            after.len() > seen.len() && after.len() % 2 == 0,
            "step {step}: {after:?}"
        );
        assert!(
            after.starts_with(&seen),
            "step {step}: what was seen is gone"
        );
    })
    .await;
}

/// Appends until a power loss at the given step. Returns the acknowledged messages and whether the power loss happened.
async fn append_until_power_loss(
    root: &Path,
    texts: &[&str],
    step: u64,
    left: PowerLossEffect,
) -> (Vec<String>, bool) {
    let faults = Faults::new();
    faults.track_durability(root).unwrap();
    faults.crash_at(step);
    let store = FileStore::with_fs(root, Durability::Always, faults.fs());
    let mut acknowledged = Vec::new();
    for text in texts {
        if store
            .append(&name(), vec![Entry::message("user", *text); 2])
            .await
            .is_err()
        {
            break;
        }
        acknowledged.extend([(*text).to_owned(), (*text).to_owned()]);
    }
    drop(store);
    faults.cut_power(root, left).unwrap();
    (acknowledged, faults.has_crashed())
}

// L1: with `always`, power loss at any step, and again during recovery, loses no acknowledged batch and damages
// nothing. Any part of the unsynced data may be left, including the length of a file without its content.
#[tokio::test]
async fn a_loss_of_power_at_any_step_loses_nothing_acknowledged() {
    // First a batch longer than a disk sector, then a shorter one at the same offset.
    let long = ["a", "b"].map(|letter| letter.repeat(700));
    for first in PowerLossEffect::ALL {
        let (mut step, mut again) = (1, 1);
        loop {
            let then = PowerLossEffect::ALL
                [usize::try_from(step + again).unwrap() % PowerLossEffect::ALL.len()];
            let case =
                format!("{first:?} at step {step}, {then:?} at step {again} of the recovery");
            let root = tempfile::tempdir().unwrap();
            let texts = long.each_ref().map(String::as_str);
            let (mut expected, was_cut) =
                append_until_power_loss(root.path(), &texts, step, first).await;
            let read_back = messages(root.path()).await;
            assert!(
                read_back.starts_with(&expected),
                "{case}: {expected:?} became {read_back:?}"
            );
            // A prefix of a batch may remain only if no record shows that it was a batch.
            assert!(
                read_back.len().is_multiple_of(2) || first == PowerLossEffect::Half,
                "{case}: half a batch"
            );
            expected = read_back;
            let (more, was_cut_again) =
                append_until_power_loss(root.path(), &["c", "d"], again, then).await;
            expected.extend(more);
            let faults = Faults::new();
            faults.track_durability(root.path()).unwrap();
            let store = FileStore::with_fs(root.path(), Durability::Os, faults.fs());
            store.append(&name(), vec![numbered(9)]).await.unwrap();
            let read_back = messages(root.path()).await;
            let is_kept = expected.iter().all(|text| {
                let count =
                    |texts: &[String]| texts.iter().filter(|read_back| *read_back == text).count();
                count(&read_back) >= count(&expected)
            });
            assert!(
                is_kept && read_back.last().unwrap() == "9 你好",
                "{case}: {expected:?} became {read_back:?}"
            );
            assert_eq!(store.verify(&name()).await.unwrap().damage, [], "{case}");
            match (was_cut, was_cut_again) {
                // Try only some steps of the recovery, different ones each time.
                (_, true) => again += 3,
                (true, false) => (step, again) = (step + 1, 1 + step % 3),
                (false, false) => break,
            }
        }
        assert!(step > 8, "{first:?}: only {step} steps");
    }
}

// L1: no kill makes the chain of a tape broken or unproven: not in the first append to a new tape, not in a later one,
// and not in a reset. Neither before nor after the next append.
#[tokio::test]
async fn a_kill_at_any_step_leaves_a_chain_that_is_proven() {
    let kill = |store: FileStore, faults: &Faults, step| {
        faults.kill_at(step);
        store.with_chain()
    };
    let chained = |root: &Path| FileStore::new(root, Durability::Os).with_chain();
    let check = async |root: &Path, (): (), step: u64| {
        let store = chained(root);
        for round in ["after the kill", "after the next append"] {
            if store.path(&name()).exists() {
                let report = store.verify_chain(&name(), None).await.unwrap();
                assert_eq!(report.unchained, 0, "step {step}, {round}");
                assert_eq!(report.into_problem(), None, "step {step}, {round}");
            } else {
                assert_eq!(store.missing_tapes().await.unwrap(), []);
            }
            store.append(&name(), vec![numbered(9)]).await.unwrap();
        }
    };
    let append = async |store: Arc<dyn TapeStore>| {
        for number in 0..2 {
            let batch = vec![numbered(number), numbered(number + 1)];
            let _ = store.append(&name(), batch).await;
        }
    };
    let reset = async |store: Arc<dyn TapeStore>| {
        let tape = Tape::new(store, name());
        let _ = tape.reset(true).await;
        let _ = tape.append(numbered(1)).await;
    };
    let prepare = async |root: &Path| {
        let store = chained(root);
        store.append(&name(), vec![numbered(0)]).await.unwrap();
    };
    crash_everywhere_in(kill, async |_: &Path| {}, append, check).await;
    crash_everywhere_in(kill, prepare, append, check).await;
    crash_everywhere_in(kill, prepare, reset, check).await;
}

// W-12, H-60: a reset writes the new tape before it replaces the old one.
#[tokio::test]
async fn a_crash_at_any_step_of_a_reset_leaves_the_old_tape_or_the_new_one() {
    let scenario = async |store: Arc<dyn TapeStore>| {
        let tape = Tape::new(store, name()).with_sidecars([Sidecar::new("spill")]);
        tape.reset(true).await.is_ok()
    };
    crash_everywhere(prepare_three, scenario, async |root, done, step| {
        let store = FileStore::new(root, Durability::Os);
        let before = messages(root).await;
        store.append(&name(), vec![numbered(9)]).await.unwrap();
        let archives: Vec<_> = std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "bak"))
            .filter(|path| !path.to_string_lossy().contains("sidecar"))
            .collect();
        if before.len() == 3 {
            assert!(
                !done,
                "step {step}: acknowledged, yet the old tape is there"
            );
            assert!(archives.is_empty(), "step {step}: {archives:?}");
        } else {
            assert_eq!(archives.len(), 1, "step {step}");
            assert_eq!(
                std::fs::read_to_string(&archives[0])
                    .unwrap()
                    .lines()
                    .count(),
                3
            );
            let first: Vec<Entry> = store
                .read(&name(), EntryRange::ALL)
                .try_collect()
                .await
                .unwrap();
            assert_eq!(first[0].name(), Some("session/start"), "step {step}");
        }
    })
    .await;
}

// S-64, H-55, W-2, W-11: a merge is one batch, and recovery neither loses nor repeats it.
#[tokio::test]
async fn a_crash_at_any_step_of_a_fork_and_its_merge_is_recovered_once() {
    let scenario = async |store: Arc<dyn TapeStore>| {
        let tape = Tape::new(store, name()).with_sidecars([Sidecar::new("spill")]);
        let mut acknowledged = 0;
        let Ok(fork) = tape.fork(MergeBack::Yes).await else {
            return (0, false);
        };
        for number in 3..6 {
            if fork.tape().append(numbered(number)).await.is_ok() {
                acknowledged += 1;
            }
        }
        if let Ok(sidecar) = fork.tape().sidecar("spill") {
            let _ = sidecar.append(numbered(0)).await;
        }
        (acknowledged, fork.merge().await.is_ok())
    };
    crash_everywhere(
        prepare_three,
        scenario,
        async |root, (acknowledged, merged), step| {
            let store = FileStore::new(root, Durability::Os);
            let recovered = recover_forks(&store, &name()).await.unwrap();
            let seen = messages(root).await;
            let expected: Vec<_> = (0..seen.len())
                .map(|number| format!("{number} 你好"))
                .collect();
            assert_eq!(seen, expected, "step {step}: out of order or twice");
            assert!(
                seen.len() >= 3 + acknowledged,
                "step {step}: {acknowledged} acknowledged, {seen:?}"
            );
            assert!(!merged || seen.len() == 6);
            assert!(
                recover_forks(&store, &name()).await.unwrap().is_empty(),
                "step {step}: recovered twice"
            );
            assert!(
                store
                    .list(bub_tape::TapeListFilter::AllForks)
                    .await
                    .unwrap()
                    .is_empty()
            );
            if recovered.iter().any(|fork| fork.merged) && !merged && seen.len() > 3 {
                let entries: Vec<Entry> = store
                    .read(&name(), EntryRange::ALL)
                    .try_collect()
                    .await
                    .unwrap();
                let is_reported = entries.iter().any(|entry| {
                    entry.name() == Some("fork.recovered") || entry.meta.contains_key("fork")
                });
                assert!(is_reported, "step {step}: the tape does not say so");
            }
        },
    )
    .await;
}

// L2: an incomplete or missing index does not matter.
#[tokio::test]
async fn a_crash_at_any_step_of_an_index_write_changes_no_answer() {
    let prepare = async |root: &Path| {
        let store = FileStore::new(root, Durability::Os);
        let batch: Vec<_> = (0..40)
            .flat_map(|number| [Entry::anchor(&format!("a{number}"), None), numbered(number)])
            .collect();
        store.append(&name(), batch).await.unwrap();
        store.reindex(&name()).await.unwrap();
    };
    let scenario = async |store: Arc<dyn TapeStore>| {
        // The tape is long enough for the index to be saved.
        let batch: Vec<_> = (0..400)
            .flat_map(|number| {
                [
                    Entry::anchor("b", None),
                    Entry::message("user", format!("{number}").repeat(500)),
                ]
            })
            .collect();
        store.append(&name(), batch).await.is_ok()
    };
    crash_everywhere(prepare, scenario, async |root, _, step| {
        let store = FileStore::new(root, Durability::Os);
        let entries: Vec<Entry> = store
            .read(&name(), EntryRange::ALL)
            .try_collect()
            .await
            .unwrap();
        let anchors: Vec<_> = entries
            .iter()
            .filter(|entry| entry.kind == bub_tape::EntryKind::Anchor)
            .map(|entry| entry.id)
            .collect();
        let marks = store
            .anchors(&name(), bub_tape::AnchorQuery::All)
            .await
            .unwrap();
        assert_eq!(
            marks.iter().map(|mark| mark.id).collect::<Vec<_>>(),
            anchors,
            "step {step}"
        );
        let summary = store.summary(&name()).await.unwrap();
        assert_eq!(summary.entries, entries.len() as u64, "step {step}");
    })
    .await;
}

// L1: a full disk causes a clear error and no damage, and appends work again when there is space.
#[tokio::test]
async fn a_full_disk_is_an_error_and_nothing_else() {
    for free in (0..4_000).step_by(131) {
        let root = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let store = FileStore::with_fs(root.path(), Durability::Os, faults.fs());
        store.append(&name(), vec![numbered(0)]).await.unwrap();
        faults.set_disk_space(Some(free));
        let mut acknowledged = 1;
        let error = loop {
            match store
                .append(
                    &name(),
                    vec![numbered(acknowledged), numbered(acknowledged + 1)],
                )
                .await
            {
                Ok(_) => acknowledged += 2,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, TapeError::NoSpace { .. }), "{error}");
        assert_eq!(error.kind(), TapeErrorKind::Retry);
        assert_eq!(messages(root.path()).await.len(), acknowledged);
        faults.set_disk_space(None);
        let ids = store
            .append(&name(), vec![numbered(acknowledged)])
            .await
            .unwrap()
            .ids;
        assert_eq!(
            ids,
            [EntryId::new(i64::try_from(acknowledged).unwrap() + 1)]
        );
    }
}

// L1: a single failing operation is reported as an error or has no effect, and the next append works.
#[tokio::test]
async fn a_failure_at_any_step_leaves_a_working_tape() {
    for step in 1..80 {
        let root = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        faults.fail_at(step, io::ErrorKind::Other);
        let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
        let mut acknowledged = Vec::new();
        for number in 0..6 {
            if store.append(&name(), vec![numbered(number)]).await.is_ok() {
                acknowledged.push(format!("{number} 你好"));
            }
        }
        assert!(
            acknowledged.len() >= 5,
            "step {step}: one failure cost {} appends",
            6 - acknowledged.len()
        );
        assert_eq!(messages(root.path()).await, acknowledged, "step {step}");
    }
}

#[tokio::test]
async fn short_writes_are_continued() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    faults.limit_writes(7);
    let store = FileStore::with_fs(root.path(), Durability::Os, faults.fs());
    for number in 0..20 {
        store
            .append(&name(), vec![numbered(number), numbered(number)])
            .await
            .unwrap();
    }
    assert_eq!(messages(root.path()).await.len(), 40);
}

// L1: with `always`, there is exactly one fsync per batch.
#[tokio::test]
async fn durability_always_costs_one_fsync_per_batch() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
    for number in 0..50 {
        store
            .append(&name(), vec![numbered(number); 10])
            .await
            .unwrap();
    }
    assert_eq!(faults.syncs(), 50);
    let faults = Faults::new();
    let store = FileStore::with_fs(root.path(), Durability::Os, faults.fs());
    store.append(&name(), vec![numbered(1)]).await.unwrap();
    assert_eq!(faults.syncs(), 0);
}

// L1: batches that are queued during an fsync share the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_batches_share_an_fsync() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = Arc::new(FileStore::with_fs(
        root.path(),
        Durability::Always,
        faults.fs(),
    ));
    let append = |number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.append(&name(), vec![numbered(number)]).await.unwrap() })
    };
    for task in (0..200).map(append).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(messages(root.path()).await.len(), 200);
    assert!(
        faults.syncs() < 200,
        "{} fsyncs for 200 concurrent batches",
        faults.syncs()
    );
}

// L1: a failed fsync stops acknowledgements until the data is rewritten and verified.
#[tokio::test]
async fn after_a_failed_fsync_nothing_is_acknowledged_until_the_tape_is_rewritten() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
    store.append(&name(), vec![numbered(0)]).await.unwrap();
    // One failure for the batch, one for the first attempt to rewrite it.
    faults.fail_syncs(2);
    for number in [1, 2] {
        let error = store
            .append(&name(), vec![numbered(number)])
            .await
            .unwrap_err();
        assert!(matches!(error, TapeError::NotDurable { .. }), "{error}");
        assert_eq!(messages(root.path()).await, ["0 你好"]);
    }
    let before = faults.syncs();
    let ids = store.append(&name(), vec![numbered(3)]).await.unwrap().ids;
    // One fsync each for the rewrite, the tape, its lock record and the batch.
    assert_eq!((ids, faults.syncs() - before), (vec![EntryId::new(2)], 4));
    assert_eq!(messages(root.path()).await, ["0 你好", "3 你好"]);
}

// L1: an error says whether the entries may be on the tape. After a failed fsync, the batch is removed. If this fails
// too, the next writer commits the batch, so the error must not promise that nothing was changed.
#[tokio::test]
async fn an_append_that_cannot_be_undone_is_reported_as_uncertain() {
    let mut uncertain = 0;
    // The steps of the second append: the intent, the batch, its fsync, its removal, the lock record.
    for step in 1..=6 {
        let root = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
        store.append(&name(), vec![numbered(0)]).await.unwrap();
        faults.fail_syncs(1);
        faults.fail_at(faults.steps() + step, io::ErrorKind::Other);
        let error = store
            .append(&name(), vec![numbered(1)])
            .await
            .expect_err("the fsync fails");
        drop(store);
        let store = FileStore::new(root.path(), Durability::Always);
        store.append(&name(), vec![numbered(2)]).await.unwrap();
        let texts = messages(root.path()).await;
        if let TapeError::UndoFailed { .. } = error {
            uncertain += 1;
            assert_eq!(error.kind(), TapeErrorKind::Environment);
            assert_eq!(
                texts,
                ["0 你好", "1 你好", "2 你好"],
                "step {step}: {error}"
            );
        } else {
            assert_eq!(texts, ["0 你好", "2 你好"], "step {step}: {error}");
        }
    }
    assert_eq!(uncertain, 1, "removing the batch is one step");
}

// L1: the lock file records the failed fsync for other processes.
#[tokio::test]
async fn a_failed_fsync_is_remembered_by_the_next_process() {
    let root = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
    store.append(&name(), vec![numbered(0)]).await.unwrap();
    faults.fail_syncs(1);
    store.append(&name(), vec![numbered(1)]).await.unwrap_err();
    drop(store);
    let faults = Faults::new();
    let store = FileStore::with_fs(root.path(), Durability::Always, faults.fs());
    store.append(&name(), vec![numbered(2)]).await.unwrap();
    assert_eq!(
        faults.syncs(),
        4,
        "the rewrite, the tape and its record, and the batch"
    );
    assert_eq!(messages(root.path()).await, ["0 你好", "2 你好"]);
}

// H-60: a sidecar whose archive failed keeps its content, and an event on the tape reports it.
#[tokio::test]
async fn a_sidecar_that_cannot_be_archived_is_not_reset() {
    let root = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::new(root.path(), Durability::Os));
    let tape = Tape::new(store.clone(), name()).with_sidecars([Sidecar::new("spill")]);
    tape.append(numbered(0)).await.unwrap();
    tape.sidecar("spill")
        .unwrap()
        .append(Entry::event("big", Some(json!("x".repeat(10_000)))))
        .await
        .unwrap();
    let faults = Faults::new();
    faults.set_disk_space(Some(5_000));
    let cramped = Arc::new(FileStore::with_fs(root.path(), Durability::Os, faults.fs()));
    let tape = tape.with_store(cramped);
    let report = tape.reset(true).await.unwrap();
    assert!(report.archived.is_some());
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let of = |name: &str| {
        entries
            .iter()
            .find(|entry| entry.name() == Some(name))
            .unwrap()
            .data()
            .unwrap()
            .clone()
    };
    assert_eq!(of("sidecar.archive")["status"], "error");
    assert_eq!(of("sidecar.reset")["status"], "skipped");
    assert_eq!(of("sidecar.reset")["cause"], "archive_failed");
    assert_eq!(
        tape.sidecar("spill").unwrap().info().await.unwrap().entries,
        1
    );
    let _ = store
        .reset(&name(), ResetRequest::empty(None))
        .await
        .unwrap();
}
