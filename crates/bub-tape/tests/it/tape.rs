//! Operations of a tape: handoff, info, step records, reset, sidecars, forks.

use std::{future::ready, sync::Arc};

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryId, EntryKind, EntryRange, FileStore, LeaseWait,
    MemoryStore, MergeBack, SessionInfo, Sidecar, StepRecord, Tape, TapeErrorKind, TapeListFilter,
    TapeName, media, recover_forks,
};
use serde_json::{Value, json};

fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn session() -> SessionInfo {
    SessionInfo {
        workspace: Some("/srv/demo".to_owned()),
        channel: Some("cli".to_owned()),
        ..SessionInfo::new("cli:local")
    }
}

/// Runs a test on a tape of every store.
async fn on_every_store(test: impl AsyncFn(Tape)) {
    test(Tape::new(Arc::new(MemoryStore::new()), name())).await;
    let root = tempfile::tempdir().unwrap();
    test(Tape::new(
        Arc::new(FileStore::new(root.path(), Durability::Os)),
        name(),
    ))
    .await;
}

async fn shapes(tape: &Tape) -> Vec<(String, Value)> {
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    entries
        .into_iter()
        .map(|entry| (entry.kind.to_string(), Value::Object(entry.payload)))
        .collect()
}

// S-58, H-60
#[tokio::test]
async fn a_handoff_is_an_anchor_and_an_event() {
    on_every_store(async |tape| {
        assert_eq!(
            tape.handoff("phase", Some(json!({"k": 1}))).await.unwrap(),
            EntryId::new(1)
        );
        tape.handoff("bare", None).await.unwrap();
        let expected = [
            (
                "anchor".to_owned(),
                json!({"name": "phase", "state": {"k": 1}}),
            ),
            (
                "event".to_owned(),
                json!({"name": "handoff", "data": {"name": "phase", "state": {"k": 1}}}),
            ),
            ("anchor".to_owned(), json!({"name": "bare"})),
            (
                "event".to_owned(),
                json!({"name": "handoff", "data": {"name": "bare", "state": {}}}),
            ),
        ];
        assert_eq!(shapes(&tape).await, expected);
    })
    .await;
}

// S-61, W-71: the bootstrap anchor contains the session information.
#[tokio::test]
async fn the_bootstrap_anchor_is_written_once() {
    on_every_store(async |tape| {
        for _ in 0..3 {
            tape.ensure_bootstrap(&session()).await.unwrap();
        }
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].payload["state"], json!({"owner": "human"}));
        assert_eq!(
            Value::Object(entries[0].meta.clone()),
            json!({"session_id": "cli:local", "workspace": "/srv/demo", "channel": "cli"})
        );
        assert_eq!(tape.summary().await.unwrap().session, Some(session()));
    })
    .await;
}

// On older tapes, an event outside the context contains the session information.
#[tokio::test]
async fn an_older_tape_learns_whose_it_is() {
    on_every_store(async |tape| {
        tape.handoff("session/start", Some(json!({"owner": "human"})))
            .await
            .unwrap();
        for _ in 0..2 {
            tape.ensure_bootstrap(&session()).await.unwrap();
        }
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(
            (entries.len(), entries[2].name(), entries[2].is_in_context()),
            (3, Some("session.info"), false)
        );
        assert_eq!(tape.summary().await.unwrap().session, Some(session()));
    })
    .await;
}

// H-59
#[tokio::test]
async fn info_reports_the_newest_usage_that_is_whole() {
    on_every_store(async |tape| {
        tape.ensure_bootstrap(&session()).await.unwrap();
        let usage = json!({"status": "ok", "usage": {"total_tokens": 15, "prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}});
        tape.append_event("run", usage).await.unwrap();
        tape.append_event("run", json!({"status": "error"})).await.unwrap();
        tape.append_event("run", json!({"usage": {"total_tokens": "many"}})).await.unwrap();
        let info = tape.info().await.unwrap();
        assert_eq!((info.entries, info.anchors, info.entries_since_last_anchor), (5, 1, 4));
        assert_eq!(info.last_anchor.as_deref(), Some("session/start"));
        assert_eq!((info.last_token_usage, info.cache_hit_rate), (Some(15), Some(0.4)));
    })
    .await;
}

// H-72: the session's model and reasoning effort are in the summary.
#[tokio::test]
async fn the_session_model_and_effort_are_the_newest() {
    on_every_store(async |tape| {
        tape.append_event("model_switch", json!({"model": "a:1"}))
            .await
            .unwrap();
        tape.append_event(
            "reasoning_effort_switch",
            json!({"reasoning_effort": "high"}),
        )
        .await
        .unwrap();
        tape.append_event("model_switch", json!({"model": "b:2"}))
            .await
            .unwrap();
        let summary = tape.summary().await.unwrap();
        assert_eq!(
            (
                summary.model.as_deref(),
                summary.reasoning_effort.as_deref()
            ),
            (Some("b:2"), Some("high"))
        );
    })
    .await;
}

// W-71: the title of a session is the first line that the user wrote.
#[tokio::test]
async fn the_title_is_the_first_line_of_the_first_user_message() {
    on_every_store(async |tape| {
        tape.append(Entry::message("assistant", "hello")).await.unwrap();
        let header = "sender_id=human|channel=$cli|chat_id=local\n---Date: 2026-11-15T19:28:35+00:00---\n\n  fix the 漏洞\nplease";
        tape.append(Entry::message("user", header)).await.unwrap();
        tape.append(Entry::message("user", "later")).await.unwrap();
        assert_eq!(tape.summary().await.unwrap().title.as_deref(), Some("fix the 漏洞"));
    })
    .await;
}

fn full_step() -> StepRecord {
    StepRecord {
        system: Some("be kind".to_owned()),
        messages: vec![
            json!({"role": "user", "content": "hi"})
                .as_object()
                .unwrap()
                .clone(),
        ],
        tool_calls: vec![
            json!({"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}),
        ],
        tool_results: Some(vec![json!("done")]),
        text: Some("let me look".to_owned()),
        usage: Some(json!({"total_tokens": 3})),
        model: Some("openai:x".to_owned()),
        provider_state: Some(json!({"signature": "s"})),
        ..StepRecord::new("run-1")
    }
}

// H-62, W-7: order of entries, run id, text of a response with tool calls, call ids, provider state, ids of the view.
#[tokio::test]
async fn a_chat_step_is_recorded_as_one_batch_in_order() {
    on_every_store(async |tape| {
        tape.record_step(full_step()).await.unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let kinds: Vec<_> = entries.iter().map(|entry| entry.kind.to_string()).collect();
        assert_eq!(
            kinds,
            ["system", "message", "tool_call", "tool_result", "event"]
        );
        assert!(entries.iter().all(|entry| entry.meta["run_id"] == "run-1"));
        assert_eq!(entries[2].payload["content"], "let me look");
        assert_eq!(entries[2].meta["call_ids"], json!(["c1"]));
        assert_eq!(
            entries[2].meta["provider_state"],
            json!({"model": "openai:x", "state": {"signature": "s"}})
        );
        let run = entries[4].data().unwrap();
        assert_eq!(
            (run["status"].as_str(), run.get("system_sha256")),
            (Some("ok"), None)
        );
        assert_eq!(run["usage"], json!({"total_tokens": 3}));
    })
    .await;
}

// H-62: the same error is recorded once. The text of a response without tool calls is a message.
#[tokio::test]
async fn a_failed_step_records_its_error_once() {
    on_every_store(async |tape| {
        let error = Entry::error("provider", "no", None);
        let step = StepRecord {
            context_error: Some(error.clone()),
            error: Some(error),
            text: Some("partial".to_owned()),
            ..StepRecord::new("run-2")
        };
        tape.record_step(step).await.unwrap();
        let kinds: Vec<_> = shapes(&tape)
            .await
            .into_iter()
            .map(|(kind, _)| kind)
            .collect();
        assert_eq!(kinds, ["error", "message", "event"]);
        assert_eq!(shapes(&tape).await[2].1["data"]["status"], "error");
    })
    .await;
}

// W-67: a system prompt is stored once per tape. A `run` event contains its hash if another one was stored after it.
#[tokio::test]
async fn a_system_prompt_is_stored_once() {
    on_every_store(async |tape| {
        for prompt in ["one", "one", "two", "one", "two"] {
            tape.record_step(StepRecord {
                system: Some(prompt.to_owned()),
                ..StepRecord::new("r")
            })
            .await
            .unwrap();
        }
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let stored: Vec<_> = entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::System)
            .collect();
        assert_eq!(stored.len(), 2);
        let hashes: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry.data()?["system_sha256"].as_str())
            .collect();
        assert_eq!(hashes, [stored[0].meta["sha256"].as_str().unwrap()]);
    })
    .await;
}

// H-56, W-9: media are stored once, as blobs, and restored at their index.
#[tokio::test]
async fn media_leave_the_entry_and_come_back() {
    on_every_store(async |tape| {
        let image =
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        let parts =
            json!([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}, image]);
        let id = tape
            .append(Entry::message("user", parts.clone()))
            .await
            .unwrap();
        let event = Entry::event("loop.start", Some(json!({"prompt": parts})));
        tape.append(event).await.unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(entries[0].id, id);
        assert_eq!(
            entries[0].payload["content"],
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
        );
        assert!(entries.iter().all(|entry| {
            !Value::Object(entry.payload.clone())
                .to_string()
                .contains("base64")
        }));
        let blobs = tape.store().blobs();
        assert_eq!(blobs.list().await.unwrap().len(), 1);
        assert_eq!(
            media::attach_media(&*blobs, &entries[0])
                .await
                .unwrap()
                .payload["content"],
            parts
        );
        // If the blob is missing, the text remains.
        blobs.remove(&blobs.list().await.unwrap()[0]).await.unwrap();
        assert_eq!(
            media::attach_media(&*blobs, &entries[0])
                .await
                .unwrap()
                .payload,
            entries[0].payload
        );
    })
    .await;
}

// H-60, H-61: sidecars are reset with their tape, and events record each step.
#[tokio::test]
async fn a_reset_empties_tape_and_sidecars_and_says_so() {
    on_every_store(async |tape| {
        let tape = tape.with_sidecars([Sidecar::new("spill")]);
        tape.ensure_bootstrap(&session()).await.unwrap();
        tape.sidecar("spill")
            .unwrap()
            .append(Entry::message("user", "big"))
            .await
            .unwrap();
        let report = tape.reset(true).await.unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let names: Vec<_> = entries.iter().map(|entry| entry.name().unwrap()).collect();
        assert_eq!(
            names,
            [
                "session/start",
                "handoff",
                "sidecar.archive",
                "sidecar.reset"
            ]
        );
        assert_eq!(
            entries[0].payload["state"]["archived"].as_str(),
            report.archived.as_deref()
        );
        assert!(!entries[2].is_in_context() && !entries[3].is_in_context());
        assert_eq!(
            entries[3].data().unwrap(),
            &json!({"sidecar": "spill", "status": "ok", "reason": "tape.reset"})
        );
        assert_eq!(
            tape.sidecar("spill").unwrap().info().await.unwrap().entries,
            0
        );
        assert_eq!(
            tape.summary().await.unwrap().session,
            Some(session()),
            "a reset tape still says whose it is"
        );
    })
    .await;
}

// H-61
#[tokio::test]
async fn sidecars_are_archived_and_reset_by_name() {
    on_every_store(async |tape| {
        let tape = tape.with_sidecars([Sidecar::new("spill")]);
        assert_eq!(
            tape.sidecar("nope").unwrap_err().kind(),
            TapeErrorKind::NotFound
        );
        assert_eq!(
            tape.archive_sidecar("nope", "manual")
                .await
                .unwrap_err()
                .kind(),
            TapeErrorKind::NotFound
        );
        let spill = tape.sidecar("spill").unwrap();
        assert_eq!(spill.name().as_str(), format!("{}__sidecar__spill", name()));
        spill.append(Entry::message("user", "big")).await.unwrap();
        tape.archive_sidecar("spill", "manual").await.unwrap();
        assert_eq!(spill.info().await.unwrap().entries, 1);
        tape.reset_sidecar("spill", "gc", false).await.unwrap();
        assert_eq!(spill.info().await.unwrap().entries, 0);
        let names: Vec<_> = tape
            .entries(EntryRange::ALL)
            .await
            .unwrap()
            .iter()
            .map(|entry| entry.name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["sidecar.archive", "sidecar.reset"]);
        assert_eq!(
            tape.store().list(TapeListFilter::Sessions).await.unwrap(),
            [name()],
            "H-58: sidecars are not listed"
        );
    })
    .await;
}

// S-64, H-54: entries of a fork are visible inside the fork, and outside only after the merge.
#[tokio::test]
async fn a_fork_shows_its_parent_and_is_merged_whole() {
    on_every_store(async |tape| {
        let tape = tape.with_sidecars([Sidecar::new("spill")]);
        tape.ensure_bootstrap(&session()).await.unwrap();
        let fork = tape.fork(MergeBack::Yes).await.unwrap();
        let forked = fork.tape();
        assert_eq!(
            forked.handoff("inside", None).await.unwrap(),
            EntryId::new(3)
        );
        forked.append(Entry::message("user", "hi")).await.unwrap();
        let spill = forked.sidecar("spill").unwrap();
        assert_eq!(
            spill.append(Entry::message("user", "big")).await.unwrap(),
            EntryId::new(1)
        );
        let inside = forked.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(
            inside
                .iter()
                .map(|entry| entry.id.get())
                .collect::<Vec<_>>(),
            [1, 2, 3, 4, 5]
        );
        let mut newest = forked
            .entries(EntryRange::ALL.newest_first())
            .await
            .unwrap();
        newest.reverse();
        assert_eq!(newest, inside);
        let marks = forked.anchor_marks(AnchorQuery::All).await.unwrap();
        assert_eq!(
            marks
                .iter()
                .map(|mark| mark.name.as_str())
                .collect::<Vec<_>>(),
            ["session/start", "inside"]
        );
        assert_eq!(
            forked
                .entries(EntryRange::after(marks[1].position))
                .await
                .unwrap(),
            inside[3..]
        );
        assert_eq!(
            forked
                .entries(EntryRange::after(marks[0].position).before(marks[1].position))
                .await
                .unwrap(),
            inside[1..2]
        );
        let summary = forked.summary().await.unwrap();
        assert_eq!(
            (
                summary.entries,
                summary.anchors,
                summary.last_anchor.as_ref()
            ),
            (5, 2, marks.last())
        );
        assert_eq!(
            forked
                .store()
                .fetch(&name(), &[5, 1].map(EntryId::new))
                .await
                .unwrap(),
            [inside[0].clone(), inside[4].clone()]
        );
        assert_eq!(
            (
                tape.info().await.unwrap().entries,
                tape.sidecar("spill").unwrap().info().await.unwrap().entries
            ),
            (2, 0)
        );

        assert_eq!(fork.merge().await.unwrap().entries, 4);
        let merged = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(
            merged
                .iter()
                .map(|entry| &entry.payload)
                .collect::<Vec<_>>(),
            inside
                .iter()
                .map(|entry| &entry.payload)
                .collect::<Vec<_>>()
        );
        assert_eq!(
            tape.sidecar("spill").unwrap().info().await.unwrap().entries,
            1
        );
        assert!(
            tape.store()
                .list(TapeListFilter::AllForks)
                .await
                .unwrap()
                .is_empty()
        );
    })
    .await;
}

// A fork of a fork starts its view at the latest anchor, also if the outer fork has it.
#[tokio::test]
async fn a_fork_of_a_fork_sees_the_anchors_of_both() {
    on_every_store(async |tape| {
        tape.ensure_bootstrap(&session()).await.unwrap();
        let outer = tape.fork(MergeBack::Yes).await.unwrap();
        for text in ["one", "two", "three"] {
            (outer.tape().append(Entry::message("user", text)))
                .await
                .unwrap();
        }
        outer.tape().handoff("outer", None).await.unwrap();
        let inner = outer.tape().fork(MergeBack::Yes).await.unwrap();
        (inner.tape().append(Entry::message("user", "four")))
            .await
            .unwrap();
        let marks = (inner.tape().anchor_marks(AnchorQuery::Latest(1)))
            .await
            .unwrap();
        let range = EntryRange::starting_at(marks[0].position);
        let entries = inner.tape().entries(range).await.unwrap();
        assert_eq!(
            entries
                .iter()
                .map(|entry| entry.id.get())
                .collect::<Vec<_>>(),
            [6, 7, 8]
        );
        inner.merge().await.unwrap();
        outer.merge().await.unwrap();
        assert_eq!(tape.info().await.unwrap().entries, 8);
    })
    .await;
}

// S-64, H-133: forks with merge_back = false and temporary sessions leave no entries.
#[tokio::test]
async fn a_fork_that_is_not_merged_leaves_nothing() {
    on_every_store(async |tape| {
        let tape = tape.with_sidecars([Sidecar::new("spill")]);
        let fork = tape.fork(MergeBack::No).await.unwrap();
        fork.tape()
            .append(Entry::message("user", "hi"))
            .await
            .unwrap();
        fork.tape()
            .sidecar("spill")
            .unwrap()
            .append(Entry::message("user", "big"))
            .await
            .unwrap();
        assert_eq!(fork.finish().await.unwrap().entries, 0);
        assert_eq!(tape.info().await.unwrap().entries, 0);
        assert!(
            tape.store()
                .list(TapeListFilter::AllForks)
                .await
                .unwrap()
                .is_empty()
        );
        assert!(
            tape.store()
                .list(TapeListFilter::Sessions)
                .await
                .unwrap()
                .is_empty()
        );
    })
    .await;
}

// An unfinished fork is merged or discarded when the tape is opened next, and an event records this.
#[tokio::test]
async fn abandoned_forks_end_as_they_were_meant_to() {
    on_every_store(async |tape| {
        tape.ensure_bootstrap(&session()).await.unwrap();
        for merge_back in [MergeBack::Yes, MergeBack::No] {
            let fork = tape.fork(merge_back).await.unwrap();
            fork.tape()
                .append(Entry::message("user", "work"))
                .await
                .unwrap();
            assert!(
                recover_forks(&**tape.store(), tape.name())
                    .await
                    .unwrap()
                    .is_empty(),
                "it is still in use"
            );
            drop(fork);
            let recovered = recover_forks(&**tape.store(), tape.name()).await.unwrap();
            assert_eq!(
                (recovered.len(), recovered[0].entries, recovered[0].merged),
                (1, 1, merge_back == MergeBack::Yes)
            );
        }
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let events: Vec<_> = entries[2..]
            .iter()
            .map(|entry| entry.name().unwrap_or("work").to_owned())
            .collect();
        assert_eq!(events, ["work", "fork.recovered", "fork.discarded"]);
        assert!(
            recover_forks(&**tape.store(), tape.name())
                .await
                .unwrap()
                .is_empty()
        );
    })
    .await;
}

// H-54, H-55: a reset inside a fork hides the parent's entries and replaces them at the merge.
#[tokio::test]
async fn a_reset_inside_a_fork_takes_effect_at_the_merge() {
    on_every_store(async |tape| {
        tape.ensure_bootstrap(&session()).await.unwrap();
        tape.append(Entry::message("user", "old")).await.unwrap();
        let fork = tape.fork(MergeBack::Yes).await.unwrap();
        fork.tape()
            .append(Entry::message("user", "lost with the reset"))
            .await
            .unwrap();
        fork.tape().reset(true).await.unwrap();
        fork.tape()
            .append(Entry::message("user", "new"))
            .await
            .unwrap();
        let inside = fork.tape().entries(EntryRange::ALL).await.unwrap();
        assert_eq!(
            inside
                .iter()
                .map(|entry| entry.id.get())
                .collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(tape.info().await.unwrap().entries, 3);
        fork.merge().await.unwrap();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(
            (entries.len(), &entries[2].payload["content"]),
            (3, &json!("new"))
        );
        assert!(entries[0].payload["state"]["archived"].is_string());
    })
    .await;
}

// L4
#[tokio::test]
async fn a_waiting_turn_gets_the_lease_when_it_is_free() {
    on_every_store(async |tape| {
        let first = tape.lease(LeaseWait::No).await.unwrap();
        let waiting = tape.lease(LeaseWait::Forever);
        let release = async {
            ready(()).await;
            drop(first);
        };
        let (second, ()) = tokio::join!(waiting, release);
        assert_eq!(second.unwrap().tape(), &name());
    })
    .await;
}
