//! Whatever is done to a tape, every store gives the same answers.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryRange, FileStore, Fork, MemoryStore, MergeBack, Sidecar,
    Tape, TapeName, ViewOptions,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Something that is done to a tape.
#[derive(Debug, Clone)]
enum Act {
    Message(String),
    Calls(u8),
    Results(u8),
    Hidden,
    Handoff(u8),
    Fork(bool),
    Finish,
    Reset,
    Reopen,
    Reindex,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => "[a-z你 ]{0,12}".prop_map(Act::Message),
        2 => (0..3_u8).prop_map(Act::Calls),
        2 => (0..3_u8).prop_map(Act::Results),
        1 => Just(Act::Hidden),
        2 => (0..3_u8).prop_map(Act::Handoff),
        1 => any::<bool>().prop_map(Act::Fork),
        1 => Just(Act::Finish),
        1 => Just(Act::Reset),
        1 => Just(Act::Reopen),
        1 => Just(Act::Reindex),
    ]
}

/// One tape under test, perhaps forked.
struct Player {
    tape: Tape,
    fork: Option<Fork>,
    files: Option<FileStore>,
}

impl Player {
    fn new(files: Option<FileStore>) -> Self {
        let name = TapeName::for_session("/srv/demo", "cli:local");
        let tape = match &files {
            Some(store) => Tape::new(Arc::new(store.clone()), name),
            None => Tape::new(Arc::new(MemoryStore::new()), name),
        };
        Self {
            tape: tape.with_sidecars([Sidecar::new("spill")]),
            fork: None,
            files,
        }
    }

    fn current(&self) -> &Tape {
        self.fork.as_ref().map_or(&self.tape, Fork::tape)
    }

    async fn perform(&mut self, act: &Act, root: &std::path::Path) {
        let date = "2026-01-02T03:04:05.000006+00:00";
        let put = async |entry: Entry| {
            self.current().append(entry.with_date(date)).await.unwrap();
        };
        match act {
            Act::Message(text) => put(Entry::message("user", text.as_str())).await,
            Act::Calls(count) => put(Entry::tool_call((0..*count).map(call).collect())).await,
            Act::Results(count) => {
                put(Entry::tool_result((0..*count).map(Value::from).collect())).await;
            }
            Act::Hidden => put(Entry::message("user", "hidden").outside_context()).await,
            Act::Handoff(name) => {
                self.current()
                    .handoff(&format!("p{name}"), Some(json!({"n": name})))
                    .await
                    .unwrap();
            }
            Act::Fork(merge) if self.fork.is_none() => {
                let merge_back = if *merge {
                    MergeBack::Yes
                } else {
                    MergeBack::No
                };
                self.fork = Some(self.tape.fork(merge_back).await.unwrap());
            }
            Act::Finish => {
                if let Some(fork) = self.fork.take() {
                    fork.finish().await.unwrap();
                }
            }
            Act::Reset => drop(self.current().reset(false).await.unwrap()),
            Act::Reopen if self.fork.is_none() && self.files.is_some() => {
                let store = FileStore::new(root, Durability::Os);
                self.tape = self.tape.clone().with_store(Arc::new(store.clone()));
                self.files = Some(store);
            }
            Act::Reindex => {
                if let Some(store) = &self.files {
                    store.reindex(self.tape.name()).await.unwrap();
                }
            }
            Act::Fork(_) | Act::Reopen => {}
        }
    }

    /// Everything that can be asked, without what differs by nature (positions, dates of forks, names of archives).
    async fn answers(&self) -> (Vec<Value>, Value, Vec<String>, Value) {
        let tape = self.current();
        let entries = tape.entries(EntryRange::ALL).await.unwrap();
        let mut newest = tape.entries(EntryRange::ALL.newest_first()).await.unwrap();
        newest.reverse();
        assert_eq!(entries, newest);
        assert!(
            entries
                .windows(2)
                .all(|pair| pair[0].id.next() == pair[1].id),
            "ids are not consecutive"
        );
        let plain = entries
            .iter()
            .map(|entry| json!([entry.id, entry.kind.as_str(), entry.payload]))
            .collect();
        let summary = tape.summary().await.unwrap();
        let figures = json!([
            summary.entries,
            summary.anchors,
            summary.max_id,
            summary.entries_since_last_anchor,
            summary.title
        ]);
        let marks = tape.marks(AnchorQuery::All).await.unwrap();
        assert_eq!(marks.last(), summary.last_anchor.as_ref());
        for mark in &marks {
            assert_eq!(
                tape.first_of(EntryRange::from(mark.position))
                    .await
                    .unwrap()
                    .unwrap()
                    .id,
                mark.id
            );
        }
        let view = tape.view(&ViewOptions::new()).await.unwrap();
        check_view(&view.messages);
        let names = marks
            .into_iter()
            .map(|mark| format!("{} {}", mark.id, mark.name))
            .collect();
        (plain, figures, names, json!([view.messages, view.entries]))
    }
}

fn call(number: u8) -> Value {
    json!({"id": format!("c{number}"), "type": "function", "function": {"name": "f", "arguments": "{}"}})
}

/// L3: known roles, and every call answered once, right behind it.
fn check_view(messages: &[serde_json::Map<String, Value>]) {
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        let role = message["role"].as_str().unwrap();
        assert!(
            ["system", "user", "assistant", "tool"].contains(&role),
            "{role}"
        );
        if role == "tool" {
            assert!(!open.is_empty(), "a result without its call");
            assert_eq!(message["tool_call_id"].as_str().unwrap(), open.remove(0));
            continue;
        }
        assert!(open.is_empty(), "a call without its result");
        if let Some(calls) = message.get("tool_calls").and_then(Value::as_array) {
            open = calls
                .iter()
                .map(|call| call["id"].as_str().unwrap().to_owned())
                .collect();
        }
    }
    assert!(open.is_empty(), "a call without its result at the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    // S-56, L2, L3: any sequence of acts gives a valid view, the same in every store.
    #[test]
    fn every_store_tells_the_same_story(acts in prop::collection::vec(act(), 1..25)) {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut memory = Player::new(None);
            let mut file = Player::new(Some(FileStore::new(root.path(), Durability::Os)));
            for act in &acts {
                memory.perform(act, root.path()).await;
                file.perform(act, root.path()).await;
                let (one, other) = (memory.answers().await, file.answers().await);
                prop_assert_eq!(one, other, "after {:?}", act);
            }
            Ok(())
        })?;
    }
}
