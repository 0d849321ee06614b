//! Properties of views and queries, tested with random tapes.

use std::collections::BTreeSet;

use crate::view_support::{self, name, rejection_reason, store_fixtures};
use bub_tape::{
    AnchorSelector, ChatMessage, Entry, EntryKind, EntryRange, Fork, MergeBack, Order, Query,
    Search, Tape, TapeContext, View, ViewOptions, codec,
};
use proptest::{prelude::*, sample::select};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

/// An operation on a tape.
#[derive(Debug, Clone)]
enum Step {
    Append(Vec<Entry>),
    Handoff(String, Option<Value>),
    Fork,
    Merge,
    Discard,
    Reset(bool),
}

fn word() -> impl Strategy<Value = String> {
    let known = [
        "zebrafish",
        "你好世界",
        "Straße",
        "σίσυφος",
        "a \"quoted\" word",
        "line\nbreak\\path",
        "",
        "x/y",
        "\u{1b}[0m",
    ];
    prop_oneof![2 => select(known.to_vec()).prop_map(str::to_owned), 1 => "[a-eA-E é\"\\\\/\n]{0,12}"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        word().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!(1.5)),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(word(), inner, 0..3)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn call() -> impl Strategy<Value = Value> {
    let id = select(vec![
        json!("a"),
        json!("b"),
        json!(""),
        json!(null),
        json!("call_1"),
    ]);
    let good = id
        .clone()
        .prop_map(|id| view_support::call(id.as_str().unwrap_or_default(), "bash"));
    let nameless = id.prop_map(|id| json!({"id": id, "type": "function"}));
    prop_oneof![8 => good, 1 => nameless, 1 => value()]
}

fn message() -> impl Strategy<Value = Entry> {
    let plain = (
        select(vec!["user", "assistant", "system", "tool", "wizard"]),
        value(),
    )
        .prop_map(|(role, content)| Entry::message(role, content));
    let calling = prop::collection::vec(call(), 0..3).prop_map(|calls| {
        let payload = json!({"role": "assistant", "content": null, "tool_calls": calls});
        Entry::raw_message(payload.as_object().unwrap().clone())
    });
    let answering = select(vec!["a", "b", "z"]).prop_map(|id| {
        let payload = json!({"role": "tool", "tool_call_id": id, "content": "x"});
        Entry::raw_message(payload.as_object().unwrap().clone())
    });
    let pictured = word().prop_map(|text| {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
        let parts = if text.is_empty() {
            vec![image]
        } else {
            vec![json!({"type": "text", "text": text}), image]
        };
        Entry::message("user", parts)
    });
    prop_oneof![5 => plain, 2 => calling, 2 => answering, 1 => pictured]
}

fn entry() -> impl Strategy<Value = Entry> {
    let done = (select(vec!["a", "b"]), value())
        .prop_map(|(id, result)| bub_tape::tool_done_event(id, result));
    let state = prop::option::of(prop_oneof![
        value(),
        prop::collection::vec(0..40_i64, 0..6).prop_map(|ids| json!({"carry": ids, "digest": "…"})),
    ]);
    let bare = prop_oneof![
        6 => message(),
        4 => prop::collection::vec(call(), 0..4).prop_map(Entry::tool_call),
        4 => prop::collection::vec(value(), 0..4).prop_map(Entry::tool_result),
        2 => done,
        1 => (select(vec!["phase", "session/start"]), state).prop_map(|(name, state)| Entry::anchor(name, state)),
        1 => value().prop_map(|data| Entry::event("loop.step", Some(data))),
        1 => word().prop_map(|text| Entry::system(&text)),
        1 => value().prop_map(|value| {
            let kind = select_kind(&value);
            Entry::new(kind, Map::from_iter([("x".to_owned(), value)]))
        }),
    ];
    (
        bare,
        prop::option::of(select(vec!["run-1", "run-2"])),
        prop::bool::weighted(0.1),
        1..28_u8,
    )
        .prop_map(|(mut entry, run, hidden, day)| {
            if let Some(run) = run {
                entry.meta.insert("run_id".to_owned(), run.into());
            }
            let entry = if hidden {
                entry.exclude_from_context()
            } else {
                entry
            };
            entry.with_date(format!("2026-01-{day:02}T00:00:00+00:00"))
        })
}

/// Returns kinds that do not fit their payload, and unknown kinds.
fn select_kind(value: &Value) -> EntryKind {
    match value {
        Value::Null => EntryKind::ToolCall,
        Value::Bool(true) => EntryKind::ToolResult,
        Value::Bool(false) => EntryKind::Anchor,
        Value::Number(_) => EntryKind::Message,
        _ => EntryKind::Other("letter".to_owned()),
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(entry(), 1..6).prop_map(Step::Append),
        2 => (select(vec!["phase", "auto_handoff/context_overflow"]), prop::option::of(value()))
            .prop_map(|(name, state)| Step::Handoff(name.to_owned(), state)),
        2 => Just(Step::Fork),
        2 => Just(Step::Merge),
        1 => Just(Step::Discard),
        1 => any::<bool>().prop_map(Step::Reset),
    ]
}

/// A tape and its open fork.
struct TapeFixture {
    label: &'static str,
    tape: Tape,
    fork: Option<Fork>,
    _place: view_support::StoreFixture,
}

impl TapeFixture {
    fn current(&self) -> &Tape {
        self.fork.as_ref().map_or(&self.tape, Fork::tape)
    }

    async fn play(&mut self, step: Step) {
        match step {
            Step::Append(entries) => drop(self.current().append_all(entries).await.unwrap()),
            Step::Handoff(name, state) => drop(self.current().handoff(&name, state).await.unwrap()),
            Step::Fork if self.fork.is_none() => {
                self.fork = Some(self.tape.fork(MergeBack::Yes).await.unwrap());
            }
            Step::Fork => {}
            Step::Merge => {
                if let Some(fork) = self.fork.take() {
                    fork.finish().await.unwrap();
                }
            }
            Step::Discard => {
                if let Some(fork) = self.fork.take() {
                    fork.discard().await.unwrap();
                }
            }
            Step::Reset(archive) => drop(self.current().reset(archive).await.unwrap()),
        }
    }

    /// Checks that the ranges of a view contain exactly its entries, of those that views show.
    async fn check_ranges(&self, view: &View) {
        let entries = self.current().entries(EntryRange::ALL).await.unwrap();
        let is_shown = |entry: &Entry| {
            let kinds = [
                EntryKind::Anchor,
                EntryKind::Message,
                EntryKind::ToolCall,
                EntryKind::ToolResult,
            ];
            entry.is_in_context() && kinds.contains(&entry.kind)
        };
        let mut expanded = BTreeSet::new();
        for (first, last) in &view.ranges {
            let inside = |entry: &&Entry| *first <= entry.id && entry.id <= *last;
            let shown = entries
                .iter()
                .filter(inside)
                .filter(|entry| is_shown(entry));
            expanded.extend(shown.map(|entry| entry.id).chain([*first, *last]));
        }
        let used: BTreeSet<_> = view.entries.iter().copied().collect();
        assert_eq!(expanded, used, "{:?} in {}", view.ranges, self.label);
    }

    /// Returns all views as one value, which must be equal in all stores.
    async fn shows(&self) -> Vec<(Vec<ChatMessage>, Vec<i64>)> {
        let mut shown = Vec::new();
        let anchors = [
            AnchorSelector::Last,
            AnchorSelector::Whole,
            AnchorSelector::Named("phase".to_owned()),
        ];
        for anchor in anchors {
            let options = ViewOptions {
                carry_limit: 200,
                ..ViewOptions::new().with_turn_start(bub_tape::EntryId::new(3))
            };
            let view = self
                .current()
                .view_with_context(&TapeContext::new().with_anchor(anchor.clone()), &options)
                .await;
            let Ok(view) = view else { continue };
            assert_eq!(
                rejection_reason(&view.messages),
                None,
                "{anchor:?} in {}",
                self.label
            );
            self.check_ranges(&view).await;
            // The path of an archive depends on the store.
            let messages = view
                .messages
                .into_iter()
                .filter(|message| !message["content"].to_string().contains("archived"));
            shown.push((
                messages.collect(),
                view.entries.iter().map(|id| id.get()).collect(),
            ));
        }
        shown
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

    /// L3, S-64: any sequence of appends, handoffs, forks, merges and resets gives a view that providers accept, and
    /// that is equal in all stores.
    #[test]
    fn a_view_is_always_valid_and_the_same_in_every_store(steps in prop::collection::vec(step(), 1..12)) {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let mut players: Vec<TapeFixture> = store_fixtures()
                .into_iter()
                .map(|fixture| TapeFixture { label: fixture.label, tape: fixture.tape.clone(), fork: None, _place: fixture })
                .collect();
            for step in steps {
                let mut views = Vec::new();
                for player in &mut players {
                    player.play(step.clone()).await;
                    views.push(player.shows().await);
                }
                assert_eq!(views[0], views[1], "memory and file");
                assert_eq!(views[0], views[2], "memory and lines");
            }
        });
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => select(vec![
            "zebrafish", "ZEBRA", "zebrafsh", "世界", "strasse", "STRAßE", "ΣΊΣΥΦΟΣ", "\"quoted\"", "word", "k\\p", "/y", "1",
            "run-1", "2026-01-0", "message", "x", "[0m", "lne break", "quted word",
        ]).prop_map(str::to_owned),
        1 => "[a-eA-E é\"\\\\/\n]{0,6}",
        1 => any::<String>(),
    ]
}

fn query() -> impl Strategy<Value = Query> {
    let window = select(vec![
        Query::new(),
        Query::new().after_last_anchor(),
        Query::new().after_anchor("phase"),
        Query::new().between_anchors("session/start", "phase"),
    ]);
    let dates = (
        prop::option::of(select(vec!["2026-01-05", "2026-01-10T00:00:00Z", "bad"])),
        prop::option::of(select(vec!["2026-01-20", "2026-01-10"])),
    );
    let kinds = prop::collection::vec(
        select(vec![
            EntryKind::Message,
            EntryKind::ToolResult,
            EntryKind::Anchor,
            EntryKind::Event,
            EntryKind::Other("letter".to_owned()),
        ]),
        0..3,
    );
    (
        window,
        prop::option::of(text()),
        dates,
        kinds,
        prop::option::of(0..5_usize),
        any::<bool>(),
    )
        .prop_map(|(mut query, text, (start, end), kinds, limit, newest)| {
            query.text = text.filter(|text| !text.is_empty());
            query.dates.start = start.map(str::to_owned);
            query.dates.end = end.map(str::to_owned);
            query.kinds = kinds;
            query.limit = limit;
            query.order = if newest {
                Order::NewestFirst
            } else {
                Order::OldestFirst
            };
            query
        })
}

proptest! {
    /// L2: the results of queries and searches depend neither on the store nor on line filters.
    #[test]
    fn queries_and_searches_do_not_depend_on_the_store(
        entries in prop::collection::vec(entry(), 0..30),
        query in query(),
        text in text(),
        fuzzy: bool,
    ) {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let (mut answers, mut finds) = (Vec::new(), Vec::new());
            for fixture in store_fixtures() {
                fixture.tape.store().append(&name(), entries.clone()).await.unwrap();
                let selected = fixture.tape.query_all(query.clone()).await;
                answers.push(selected.map_err(|error| error.to_string()));
                let search = Search { text: text.clone(), within: query.clone(), limit: 5, fuzzy, running_turn: None };
                finds.push(fixture.tape.search(&search).await.map_err(|error| error.to_string()));
            }
            assert_eq!(answers[0], answers[1], "memory and file");
            assert_eq!(answers[0], answers[2], "memory and lines");
            assert_eq!(finds[0], finds[1], "memory and file");
            assert_eq!(finds[0], finds[2], "memory and lines");
        });
    }

    /// Except for window and limit, a query gives the same result as filtering all entries of the tape.
    #[test]
    fn a_query_filters_the_tape(entries in prop::collection::vec(entry(), 0..30), query in query()) {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let tape = view_support::tape_of(entries).await;
            let query = Query { window: bub_tape::AnchorWindow::All, limit: None, ..query };
            let Ok(selected) = tape.query_all(query.clone()).await else { return };
            let all = tape.entries(EntryRange { order: query.order, ..EntryRange::ALL }).await.unwrap();
            let mut rest = all.iter();
            assert!(selected.iter().all(|entry| rest.any(|other| other == entry)), "same order, nothing else");
            for entry in all.iter().filter(|entry| !selected.contains(entry)) {
                let single = view_support::tape_of(vec![entry.clone()]).await;
                assert_eq!(single.query_all(query.clone()).await.unwrap(), vec![], "omitted for a reason");
            }
        });
    }

    /// The decoder accepts any bytes. Encoding and decoding an entry again does not change it.
    #[test]
    fn the_line_reader_survives_any_bytes(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        entry in entry(),
        cut in any::<prop::sample::Index>(),
        flip in any::<(prop::sample::Index, u8)>(),
    ) {
        let mut line = codec::encode(&entry).into_bytes();
        prop_assert_eq!(codec::decode(&line), Some(entry));
        let at = flip.0.index(line.len());
        line[at] = flip.1;
        let torn = &line[..cut.index(line.len())];
        for bytes in [&noise[..], &line[..], torn] {
            if let Some(entry) = codec::decode(bytes) {
                let again = codec::encode(&entry);
                prop_assert_eq!(codec::decode(again.as_bytes()), Some(entry));
                prop_assert!(again.ends_with('\n') && again.trim_end().lines().count() == 1);
            }
        }
    }
}

/// Entries of several blocks are returned in order, in both directions.
#[test]
fn blocks_come_back_in_order() {
    let root = tempfile::tempdir().unwrap();
    let store = bub_tape::FileStore::new(root.path(), bub_tape::Durability::Os);
    let tape = Tape::new(std::sync::Arc::new(store), name());
    Runtime::new().unwrap().block_on(async {
        let word = |number: i64| if number % 7 == 0 { "Needle" } else { "hay" };
        let text = |number: i64| format!("{number} {} {}", word(number), "x".repeat(200));
        tape.append_all(
            (1..=3_000)
                .map(|number| Entry::message("user", text(number)))
                .collect(),
        )
        .await
        .unwrap();
        let mut expected: Vec<i64> = (1..=3_000).filter(|number| number % 7 == 0).collect();
        let query = Query::new().text("needle");
        assert_eq!(
            view_support::ids(&tape.query_all(query.clone()).await.unwrap()),
            expected
        );
        expected.reverse();
        assert_eq!(
            view_support::ids(&tape.query_all(query.newest_first()).await.unwrap()),
            expected
        );
    });
}
