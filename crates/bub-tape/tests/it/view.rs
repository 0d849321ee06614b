//! Building views from tapes.

use std::sync::Arc;

use crate::view_support::{CountingStore, call, name, rejection_reason, store_fixtures, tape_of};
use bub_tape::{
    AnchorSelector, ChatMessage, Entry, EntryId, EntryKind, EntryRange, INTERRUPTED_RESULT,
    MediaLimit, StepRecord, Tape, TapeContext, TapeError, TapeErrorKind, TapeStore as _, View,
    ViewOptions, media, tool_done_event,
};
use serde_json::{Map, Value, json};

async fn view(entries: Vec<Entry>) -> View {
    let view = tape_of(entries)
        .await
        .view(&ViewOptions::new())
        .await
        .unwrap();
    assert_eq!(rejection_reason(&view.messages), None);
    view
}

fn messages(view: &View) -> Value {
    serde_json::to_value(&view.messages).unwrap()
}

fn used(view: &View) -> Vec<i64> {
    view.entries.iter().map(|id| id.get()).collect()
}

fn user(text: &str) -> Entry {
    Entry::message("user", text)
}

fn tool(id: &str, content: &str) -> Value {
    json!({"role": "tool", "content": content, "tool_call_id": id, "name": "bash"})
}

fn calls(ids: &[&str]) -> Value {
    let calls: Vec<Value> = ids.iter().map(|id| call(id, "bash")).collect();
    json!({"role": "assistant", "content": "", "tool_calls": calls})
}

fn called(ids: &[&str]) -> Entry {
    Entry::tool_call(ids.iter().map(|id| call(id, "bash")).collect())
}

/// S-57, S-66, W-5: the view starts at the latest anchor, and the first message contains its state. It is not an
/// assistant message, because models imitate these.
#[tokio::test]
async fn the_latest_anchor_opens_the_view() {
    let entries = vec![
        Entry::anchor("session/start", Some(json!({"owner": "human"}))),
        user("forgotten"),
        Entry::anchor("phase-2", Some(json!({"summary": "二", "left": ["a", 1]}))),
        Entry::event("handoff", Some(json!({"name": "phase-2"}))),
        user("hello"),
    ];
    let view = view(entries).await;
    let opening = "<handoff name=\"phase-2\">\n二\n{\"left\": [\"a\", 1]}\n</handoff>";
    assert_eq!(
        messages(&view),
        json!([{"role": "user", "content": opening}, {"role": "user", "content": "hello"}])
    );
    assert_eq!(
        (used(&view), view.origin),
        (vec![3, 5], Some(EntryId::new(3)))
    );
}

/// The first anchor of a tape and an anchor without state say nothing to the model.
#[tokio::test]
async fn an_opening_anchor_without_content_is_not_shown() {
    let start = |state| Entry::anchor("session/start", Some(state));
    let silent = [
        start(json!({"owner": "human"})),
        start(json!({"owner": "human", "summary": " "})),
        Entry::anchor("bare", None),
        Entry::anchor("bare", Some(json!({}))),
    ];
    for anchor in silent {
        let view = view(vec![anchor, user("hi")]).await;
        assert_eq!(messages(&view), json!([{"role": "user", "content": "hi"}]));
        assert_eq!((used(&view), view.origin), (vec![2], Some(EntryId::new(1))));
    }
    let view = view(vec![start(json!({"owner": "human", "summary": "said"}))]).await;
    let expected = "<handoff name=\"session/start\">\nsaid\n</handoff>";
    assert_eq!(messages(&view)[0]["content"], expected);
}

/// S-62: an anchor inside the selected entries is an assistant message with its state; a missing state is `null`.
#[tokio::test]
async fn an_anchor_inside_a_view_is_a_message() {
    let entries = vec![
        Entry::anchor("session/start", Some(json!({"owner": "human"}))),
        user("hi"),
        Entry::anchor("bare", None),
        Entry::anchor("phase-2", Some(json!({"summary": "二"}))),
    ];
    let context = TapeContext::new().with_anchor(AnchorSelector::Whole);
    let tape = tape_of(entries).await;
    let options = ViewOptions::new();
    let view = tape.view_with_context(&context, &options).await;
    assert_eq!(
        messages(&view.unwrap()),
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "[Anchor created: bare]: null"},
            {"role": "assistant", "content": "[Anchor created: phase-2]: {\"summary\": \"二\"}"},
        ])
    );
}

/// S-62: messages are unchanged, results are paired with calls by position, and other entries are ignored.
#[tokio::test]
async fn entries_become_messages() {
    let mut with_text = called(&["a", "b"]);
    with_text
        .payload
        .insert("content".to_owned(), "let me look".into());
    let entries = vec![
        Entry::system("prompt"),
        Entry::raw_message(Map::from_iter([
            ("role".to_owned(), "user".into()),
            ("content".to_owned(), "hi".into()),
            ("name".to_owned(), "ann".into()),
        ])),
        with_text,
        Entry::tool_result(vec!["one".into(), json!({"größe": [1, 2.5]})]),
        Entry::error("timeout", "too slow", None),
        Entry::event("run", None),
        Entry::new(EntryKind::Other("letter".to_owned()), Map::new()),
        Entry::message("assistant", "done"),
    ];
    let view = view(entries).await;
    let mut assistant = calls(&["a", "b"]);
    assistant["content"] = "let me look".into();
    let expected = json!([
        {"role": "user", "content": "hi", "name": "ann"},
        assistant,
        tool("a", "one"),
        tool("b", "{\"größe\": [1, 2.5]}"),
        {"role": "assistant", "content": "done"},
    ]);
    assert_eq!(messages(&view), expected);
    assert_eq!(used(&view), [2, 3, 4, 8]);
}

/// H-57: neither the default mapping nor a selector gets entries marked with `context: false`.
#[tokio::test]
async fn entries_outside_the_context_are_omitted() {
    let entries = vec![
        Entry::anchor("a", Some(json!({"summary": "s"}))),
        user("seen"),
        user("unseen").exclude_from_context(),
    ];
    let tape = tape_of(entries.clone()).await;
    let context = TapeContext::new().with_selector(|entries| {
        assert!(entries.iter().all(Entry::is_in_context));
        entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Message)
            .map(|entry| entry.payload.clone())
            .collect()
    });
    let own = tape
        .view_with_context(&context, &ViewOptions::new())
        .await
        .unwrap();
    assert_eq!(messages(&own), json!([{"role": "user", "content": "seen"}]));
    assert_eq!(used(&own), [1, 2], "a selector used what it was given");
    assert_eq!(used(&view(entries).await), [1, 2]);
}

/// S-63, L3: a selector replaces the default mapping but cannot make the view invalid.
#[tokio::test]
async fn what_a_selector_returns_is_repaired_too() {
    let context = TapeContext::new().with_selector(|_| {
        let as_map = |value: Value| value.as_object().unwrap().clone();
        vec![
            as_map(json!({"role": "tool", "content": "lost", "tool_call_id": "x"})),
            as_map(calls(&["a", "b"])),
            as_map(tool("b", "second")),
            as_map(json!({"role": "wizard", "content": "abracadabra"})),
        ]
    });
    let tape = tape_of(vec![user("hi")]).await.with_context(context);
    let view = tape.view(&ViewOptions::new()).await.unwrap();
    assert_eq!(
        messages(&view),
        json!([
            calls(&["a", "b"]),
            tool("a", INTERRUPTED_RESULT),
            tool("b", "second")
        ])
    );
}

/// L3: the entries of a view include the events whose results it shows.
#[tokio::test]
async fn results_known_from_events_are_named() {
    let view = view(vec![
        called(&["a", "b"]),
        tool_done_event("b", "second"),
        tool_done_event("zzz", "?"),
        user("go on"),
    ])
    .await;
    assert_eq!(used(&view), [1, 2, 4]);
}

/// A view can start at another anchor. It then includes the later anchors.
#[tokio::test]
async fn the_origin_can_be_chosen() {
    let entries = vec![
        user("0"),
        Entry::anchor("a", Some(json!({"summary": "s"}))),
        user("1"),
        Entry::anchor("b", Some(json!({"summary": "s"}))),
        user("2"),
    ];
    for fixture in store_fixtures() {
        fixture
            .tape
            .store()
            .append(&name(), entries.clone())
            .await
            .unwrap();
        for (anchor, expected) in [
            (AnchorSelector::Last, vec![4, 5]),
            (AnchorSelector::Named("a".to_owned()), vec![2, 3, 4, 5]),
            (AnchorSelector::Whole, vec![1, 2, 3, 4, 5]),
        ] {
            let context = TapeContext::new().with_anchor(anchor.clone());
            let view = fixture
                .tape
                .view_with_context(&context, &ViewOptions::new())
                .await
                .unwrap();
            assert_eq!(used(&view), expected, "{anchor:?} in {}", fixture.label);
        }
        let missing = TapeContext::new().with_anchor(AnchorSelector::Named("c".to_owned()));
        let error = fixture
            .tape
            .view_with_context(&missing, &ViewOptions::new())
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (TapeErrorKind::NotFound, "Anchor 'c' was not found.")
        );
    }
}

/// W-15: only a tape without anchors is shown completely. A store that cannot be read is an error.
#[tokio::test]
async fn a_view_never_takes_an_error_for_an_empty_tape() {
    for fixture in store_fixtures() {
        assert_eq!(
            fixture.tape.view(&ViewOptions::new()).await.unwrap(),
            View::default()
        );
    }
    assert_eq!(used(&view(vec![user("before any anchor")]).await), [1]);
    let spy = Arc::new(CountingStore::new());
    spy.append(&name(), vec![user("x")]).await.unwrap();
    spy.fail_with(TapeError::Denied {
        path: "tapes".to_owned(),
    });
    let tape = Tape::new(spy, name());
    assert_eq!(
        tape.view(&ViewOptions::new()).await.unwrap_err().kind(),
        TapeErrorKind::Environment
    );
}

/// L5: building a view reads nothing before the anchor.
#[tokio::test]
async fn the_cost_of_a_view_is_that_of_its_entries() {
    let spy = Arc::new(CountingStore::new());
    let mut entries = vec![user("x"); 3_000];
    entries.push(Entry::anchor("here", Some(json!({"summary": "s"}))));
    entries.extend(vec![user("y"); 10]);
    spy.append(&name(), entries).await.unwrap();
    let tape = Tape::new(Arc::clone(&spy) as Arc<_>, name());
    assert_eq!(
        tape.view(&ViewOptions::new()).await.unwrap().messages.len(),
        11
    );
    assert_eq!(spy.count(), 11);
}

/// An anchor can carry earlier entries. The view shows them after the anchor, with calls and results paired.
#[tokio::test]
async fn carried_entries_follow_the_anchor() {
    let state = |ids: Value| json!({"reason": "context_length_exceeded", "carry": ids});
    let tape = tape_of(vec![
        Entry::anchor("session/start", None),
        user("old"),
        user("the task"),
        called(&["a"]),
        Entry::tool_result(vec!["one".into()]),
        called(&["b"]),
    ])
    .await;
    // Unknown ids and ids after the anchor are ignored.
    tape.handoff(
        "auto_handoff/context_overflow",
        Some(state(json!([3, 4, 5, 6, 99, 7]))),
    )
    .await
    .unwrap();
    tape.append(user("go on")).await.unwrap();
    let options = ViewOptions::new();
    let view = tape.view(&options).await.unwrap();
    let opening = "<handoff name=\"auto_handoff/context_overflow\">\n{\"reason\": \"context_length_exceeded\"}\n</handoff>";
    let expected = json!([
        {"role": "user", "content": opening},
        {"role": "user", "content": "the task"},
        calls(&["a"]),
        tool("a", "one"),
        calls(&["b"]),
        tool("b", INTERRUPTED_RESULT),
        {"role": "user", "content": "go on"},
    ]);
    assert_eq!(messages(&view), expected);
    assert_eq!(used(&view), [7, 3, 4, 5, 6, 9]);
    // With a small limit, the first user message and the latest entries remain.
    let short = tape
        .view(&ViewOptions {
            carry_limit: 160,
            ..options
        })
        .await
        .unwrap();
    assert_eq!(used(&short), [7, 3, 6, 9]);
    assert_eq!(rejection_reason(&short.messages), None);
    // A state with an unrelated value under this key is unchanged.
    tape.handoff("mine", Some(json!({"carry": "the bag"})))
        .await
        .unwrap();
    let mine = tape.view(&ViewOptions::new()).await.unwrap();
    assert_eq!(
        messages(&mine)[0]["content"],
        "<handoff name=\"mine\">\n{\"carry\": \"the bag\"}\n</handoff>"
    );
}

fn picture(data: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}})
}

/// Returns a tape whose entries were appended through the tape, so that their media are blobs.
async fn appended(entries: Vec<Entry>) -> Tape {
    let tape = tape_of(Vec::new()).await;
    tape.append_all(entries).await.unwrap();
    tape
}

fn answer(run: &str) -> Entry {
    Entry::message("assistant", "ok").with_meta("run_id", run)
}

/// Returns what a view shows of each media part: the data of a picture, or the marker in its place.
fn shown_media(view: &View) -> Vec<String> {
    let users = view
        .messages
        .iter()
        .filter(|message| message["role"] == "user");
    let parts =
        users.flat_map(|message| message["content"].as_array().cloned().unwrap_or_default());
    let parts = parts.filter_map(|part| {
        let text = part["text"].as_str().filter(|text| text.starts_with('['));
        let url = part["image_url"]["url"].as_str();
        let data = url.map(|url| url.rsplit(['/', ',']).next().unwrap_or_default());
        data.or(text).map(str::to_owned)
    });
    parts.collect()
}

const ALL_MEDIA: MediaLimit = MediaLimit {
    items: usize::MAX,
    bytes: u64::MAX,
};

/// L3, W-9: media are shown during their turn, and later within a limit.
#[tokio::test]
async fn media_stay_visible_within_the_limit() {
    let text = json!({"type": "text", "text": "what is this?"});
    for fixture in store_fixtures() {
        let (tape, label) = (&fixture.tape, fixture.label);
        let first = Entry::message("user", vec![picture("AAAA")]).with_meta("run_id", "one");
        let first = media::with_media_names(first, [(0, "a\n[b].png".to_owned())]);
        tape.append_all(vec![first, answer("one")]).await.unwrap();
        let second = Entry::message("user", vec![text.clone(), picture("BBBB"), text.clone()]);
        let turn = tape
            .append(second.with_meta("run_id", "two"))
            .await
            .unwrap();
        tape.append(called(&["a"])).await.unwrap();
        let during = ViewOptions::new().with_turn_start(turn);
        let view = tape.view(&during).await.unwrap();
        assert_eq!(
            shown_media(&view),
            ["[image ab.png, sent earlier]", "BBBB"],
            "{label}"
        );
        assert_eq!(
            messages(&view)[2]["content"],
            json!([text, picture("BBBB"), text]),
            "{label}"
        );
        let view = tape.view(&during.with_media(ALL_MEDIA)).await.unwrap();
        assert_eq!(shown_media(&view), ["AAAA", "BBBB"], "{label}");
        // The entry on the tape has only text, as in the Python version, and describes the file.
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        assert_eq!(entries[0].payload["content"], json!([]), "{label}");
        let mut item = entries[0].meta["media"][0].clone();
        assert!(item["blob"].take().as_str().unwrap().starts_with("sha256:"));
        let expected = json!({"index": 0, "type": "image_url", "blob": null, "mime_type": "image/png",
            "bytes": 3, "name": "ab.png"});
        assert_eq!(item, expected, "{label}");
        // A file that is gone, or that the store cannot read, does not fail the call.
        let blobs = tape.store().blobs();
        for blob in blobs.list().await.unwrap() {
            blobs.remove(&blob).await.unwrap();
        }
        let view = tape
            .view(&ViewOptions::new().with_media(ALL_MEDIA))
            .await
            .unwrap();
        let expected = ["[image ab.png, sent earlier]", "[image, sent earlier]"];
        assert_eq!(shown_media(&view), expected, "{label}");
    }
}

// A provider that rejected an image, or cannot load an address any more, would reject all later requests.
#[tokio::test]
async fn media_without_an_answer_and_addresses_are_not_shown_again() {
    let rejected = Entry::message("user", vec![picture("AAAA")]).with_meta("run_id", "one");
    let address = json!({"type": "image_url", "image_url": {"url": "https://example.com/b.png"}});
    let address = Entry::message("user", vec![address]).with_meta("run_id", "two");
    let tape = appended(vec![rejected, address, answer("two")]).await;
    let during = ViewOptions::new().with_media(ALL_MEDIA);
    let view = tape
        .view(&during.clone().with_turn_start(EntryId::new(2)))
        .await
        .unwrap();
    assert_eq!(shown_media(&view), ["[image, sent earlier]", "b.png"]);
    let view = tape
        .view(&during.clone().with_turn_start(EntryId::new(1)))
        .await
        .unwrap();
    assert_eq!(shown_media(&view), ["AAAA", "b.png"]);
    let view = tape.view(&during).await.unwrap();
    assert_eq!(
        shown_media(&view),
        ["[image, sent earlier]", "[image, sent earlier]"]
    );
}

// Prompt caches of providers work while the start of the request stays equal.
#[tokio::test]
async fn media_beyond_the_limit_are_dropped_in_strides() {
    for limit in [
        MediaLimit {
            items: 4,
            bytes: u64::MAX,
        },
        MediaLimit {
            items: usize::MAX,
            bytes: 12,
        },
    ] {
        let tape = tape_of(Vec::new()).await;
        let options = ViewOptions::new().with_media(limit);
        let (mut counts, mut changes) = (Vec::new(), 0);
        let mut last: Vec<ChatMessage> = Vec::new();
        for turn in 0..12 {
            let run = format!("run-{turn}");
            let prompt = Entry::message("user", vec![picture("AAAA")]).with_meta("run_id", &*run);
            let prompt = tape.append(prompt).await.unwrap();
            let running = options.clone().with_turn_start(prompt);
            let view = tape.view(&running).await.unwrap();
            counts.push(
                shown_media(&view)
                    .iter()
                    .filter(|shown| *shown == "AAAA")
                    .count(),
            );
            changes += usize::from(!view.messages.starts_with(&last));
            // A second step of the turn only adds messages.
            tape.append(called(&["a"]).with_meta("run_id", &*run))
                .await
                .unwrap();
            let step = tape.view(&running).await.unwrap();
            assert!(step.messages.starts_with(&view.messages), "{limit:?}");
            tape.append(answer(&run)).await.unwrap();
            last = view.messages;
        }
        // The medium of the running turn does not count.
        assert_eq!(counts, [1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5, 3], "{limit:?}");
        assert_eq!(changes, 3, "{limit:?}");
    }
    // One that is larger than the limit is not shown again, and the smallest limit keeps the newest one.
    let sent = |data: &str, run: &str| {
        let prompt = Entry::message("user", vec![picture(data)]).with_meta("run_id", run);
        [prompt, answer(run)]
    };
    let entries = [sent("AAAA", "1"), sent("BBBB", "2"), sent("CCCCCCCC", "3")];
    let tape = appended(entries.concat()).await;
    for (items, bytes, expected) in [
        (
            1,
            100,
            ["[image, sent earlier]", "[image, sent earlier]", "CCCCCCCC"],
        ),
        (9, 5, ["[image, sent earlier]"; 3]),
        (0, 100, ["[image, sent earlier]"; 3]),
    ] {
        let options = ViewOptions::new().with_media(MediaLimit { items, bytes });
        let view = tape.view(&options).await.unwrap();
        assert_eq!(shown_media(&view), expected, "{items} {bytes}");
    }
}

#[tokio::test]
async fn a_handoff_hides_media_before_it() {
    let prompt = |run: &str| Entry::message("user", vec![picture("AAAA")]).with_meta("run_id", run);
    let tape = appended(vec![prompt("one"), answer("one")]).await;
    tape.handoff("phase", Some(json!({"summary": "done", "carry": [1]})))
        .await
        .unwrap();
    tape.append_all(vec![prompt("two"), answer("two")])
        .await
        .unwrap();
    let options = ViewOptions::new().with_media(ALL_MEDIA);
    let view = tape.view(&options).await.unwrap();
    assert_eq!(shown_media(&view), ["[image, sent earlier]", "AAAA"]);
    // A turn that hands off keeps its own media.
    let view = tape
        .view(&options.with_turn_start(EntryId::new(1)))
        .await
        .unwrap();
    assert_eq!(shown_media(&view), ["AAAA", "AAAA"]);
}

/// Provider state is sent only to the model that it comes from.
#[tokio::test]
async fn provider_state_is_for_its_own_model() {
    let tape = tape_of(Vec::new()).await;
    let mut step = StepRecord::new("run-1");
    step.tool_calls = vec![call("a", "bash")];
    step.tool_results = Some(vec!["one".into()]);
    step.model = Some("anthropic:claude".to_owned());
    step.provider_state = Some(json!({"signature": "s"}));
    tape.record_step(step).await.unwrap();
    for (model, expected) in [
        (None, None),
        (Some("openai:gpt"), None),
        (Some("anthropic:claude"), Some(json!({"signature": "s"}))),
    ] {
        let options = ViewOptions {
            model: model.map(str::to_owned),
            ..ViewOptions::new()
        };
        let view = tape.view(&options).await.unwrap();
        assert_eq!(
            view.messages[0].get("provider_state"),
            expected.as_ref(),
            "{model:?}"
        );
    }
}

// L5: the recorded form of a view does not grow with a conversation, and skips events and carried-over gaps.
#[tokio::test]
async fn a_conversation_without_gaps_is_one_range() {
    let mut entries = Vec::new();
    for _ in 0..50 {
        entries.extend([
            user("q"),
            Entry::event("run", None),
            Entry::message("assistant", "a"),
        ]);
    }
    let ids = |view: &View| -> Vec<(i64, i64)> {
        let ranges = view.ranges.iter();
        ranges
            .map(|(first, last)| (first.get(), last.get()))
            .collect()
    };
    assert_eq!(ids(&view(entries.clone()).await), [(1, 150)]);
    // A message that views can show but that this view omits ends a range. Excluded entries do not.
    entries[75] = user("hidden").exclude_from_context();
    entries[99] = Entry::tool_result(vec!["without a call".into()]);
    assert_eq!(ids(&view(entries).await), [(1, 99), (102, 150)]);
}
