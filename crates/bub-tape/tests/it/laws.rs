//! All stores give the same results after any sequence of operations.

use std::sync::Arc;

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryRange, FileStore, Fork, MemoryStore, MergeBack, Sidecar,
    Tape, TapeName, ViewOptions,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// An operation on a tape.
#[derive(Debug, Clone)]
enum Operation {
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

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => "[a-z你 ]{0,12}".prop_map(Operation::Message),
        2 => (0..3_u8).prop_map(Operation::Calls),
        2 => (0..3_u8).prop_map(Operation::Results),
        1 => Just(Operation::Hidden),
        2 => (0..3_u8).prop_map(Operation::Handoff),
        1 => any::<bool>().prop_map(Operation::Fork),
        1 => Just(Operation::Finish),
        1 => Just(Operation::Reset),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::Reindex),
    ]
}

/// A tape under test and its fork, if one is open.
struct TapeFixture {
    tape: Tape,
    fork: Option<Fork>,
    files: Option<FileStore>,
}

impl TapeFixture {
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

    async fn apply(&mut self, operation: &Operation, root: &std::path::Path) {
        let date = "2026-01-02T03:04:05.000006+00:00";
        let append = async |entry: Entry| {
            self.current().append(entry.with_date(date)).await.unwrap();
        };
        match operation {
            Operation::Message(text) => append(Entry::message("user", text.as_str())).await,
            Operation::Calls(count) => {
                append(Entry::tool_call((0..*count).map(call).collect())).await;
            }
            Operation::Results(count) => {
                append(Entry::tool_result((0..*count).map(Value::from).collect())).await;
            }
            Operation::Hidden => {
                append(Entry::message("user", "hidden").exclude_from_context()).await;
            }
            Operation::Handoff(name) => {
                self.current()
                    .handoff(&format!("p{name}"), Some(json!({"n": name})))
                    .await
                    .unwrap();
            }
            Operation::Fork(merge) if self.fork.is_none() => {
                let merge_back = if *merge {
                    MergeBack::Yes
                } else {
                    MergeBack::No
                };
                self.fork = Some(self.tape.fork(merge_back).await.unwrap());
            }
            Operation::Finish => {
                if let Some(fork) = self.fork.take() {
                    fork.finish().await.unwrap();
                }
            }
            Operation::Reset => drop(self.current().reset(false).await.unwrap()),
            Operation::Reopen if self.fork.is_none() && self.files.is_some() => {
                let store = FileStore::new(root, Durability::Os);
                self.tape = self.tape.clone().with_store(Arc::new(store.clone()));
                self.files = Some(store);
            }
            Operation::Reindex => {
                if let Some(store) = &self.files {
                    store.reindex(self.tape.name()).await.unwrap();
                }
            }
            Operation::Fork(_) | Operation::Reopen => {}
        }
    }

    /// Returns all results that must be equal in all stores. Positions, dates of forks and names of archives differ.
    async fn results(&self) -> (Vec<Value>, Value, Vec<String>, Value) {
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
        let rows = entries
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
        let marks = tape.anchor_marks(AnchorQuery::All).await.unwrap();
        assert_eq!(marks.last(), summary.last_anchor.as_ref());
        for mark in &marks {
            assert_eq!(
                tape.first_entry(EntryRange::starting_at(mark.position))
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
        (rows, figures, names, json!([view.messages, view.entries]))
    }
}

fn call(number: u8) -> Value {
    json!({"id": format!("c{number}"), "type": "function", "function": {"name": "f", "arguments": "{}"}})
}

/// Checks L3: all roles are known, and every call is followed by exactly one result.
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

    // S-56, L2, L3: any sequence of operations gives a valid view, which is equal in all stores.
    #[test]
    fn every_store_tells_the_same_story(operations in prop::collection::vec(operation(), 1..25)) {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut memory = TapeFixture::new(None);
            let mut file = TapeFixture::new(Some(FileStore::new(root.path(), Durability::Os)));
            for operation in &operations {
                memory.apply(operation, root.path()).await;
                file.apply(operation, root.path()).await;
                let (one, other) = (memory.results().await, file.results().await);
                prop_assert_eq!(one, other, "after {:?}", operation);
            }
            Ok(())
        })?;
    }
}
