//! Collects what the tapes record about each message at the end.

use std::{collections::HashMap, path::Path};

use bub_tape::{
    Durability, Entry, EntryId, EntryKind, EntryRange, FileStore, TapeListFilter, TapeStore as _,
};
use futures_util::TryStreamExt as _;
use serde_json::Value;

/// Records of one message.
#[derive(Debug, Default)]
struct MessageRecord {
    questions: usize,
    calls: usize,
    results: usize,
    /// Calls without a known result.
    interrupted: usize,
    answers: usize,
}

/// All tapes of a home.
#[derive(Debug, Default)]
pub(crate) struct Tapes {
    pub(crate) damaged: u64,
    messages: HashMap<u64, MessageRecord>,
}

impl Tapes {
    pub(crate) async fn read(root: &Path) -> Self {
        let store = FileStore::new(root.join("home/tapes"), Durability::Os);
        let mut tapes = Self::default();
        for name in store.list(TapeListFilter::Sessions).await.unwrap() {
            // The next write repairs the tape. After a fault at the end, no write has happened yet.
            store
                .append(&name, vec![Entry::event("checked", None)])
                .await
                .unwrap();
            let verify_report = store.verify(&name).await.unwrap();
            tapes.damaged += u64::from(!verify_report.damage.is_empty());
            let entries: Vec<Entry> = store
                .read(&name, EntryRange::ALL)
                .try_collect()
                .await
                .unwrap();
            tapes.add(&entries, &verify_report.interrupted);
        }
        tapes
    }

    fn add(&mut self, entries: &[Entry], interrupted: &[EntryId]) {
        let mut runs: HashMap<String, u64> = HashMap::new();
        for entry in entries {
            let run = entry
                .meta
                .get("run_id")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let content = entry
                .payload
                .get("content")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let role = entry.payload.get("role").and_then(Value::as_str);
            let number = content
                .rsplit_once("message ")
                .and_then(|(_, number)| number.trim().parse().ok());
            let is_question = role == Some("user") && number.is_some();
            runs.extend(
                number
                    .filter(|_| is_question)
                    .map(|number| (run.clone(), number)),
            );
            let Some(number) = runs.get(&run) else {
                continue;
            };
            let recorded = self.messages.entry(*number).or_default();
            match (entry.kind.clone(), role) {
                (EntryKind::Message, _) if is_question => recorded.questions += 1,
                (EntryKind::Message, Some("assistant")) => recorded.answers += 1,
                (EntryKind::ToolCall, _) => {
                    recorded.calls += 1;
                    recorded.interrupted += usize::from(interrupted.contains(&entry.id));
                }
                // The next turn adds this result if the process ended in the call.
                (EntryKind::ToolResult, _)
                    if entry.payload["results"][0] == bub_tape::INTERRUPTED_RESULT =>
                {
                    recorded.interrupted += 1;
                }
                (EntryKind::ToolResult, _) => recorded.results += 1,
                _ => {}
            }
        }
    }

    /// Checks that all records of an answered message exist once, and those of a failed message at most once.
    pub(crate) fn check(&self, number: u64, is_answered: bool, ran: usize) -> Result<(), String> {
        let nothing = MessageRecord::default();
        let found = self.messages.get(&number).unwrap_or(&nothing);
        let MessageRecord {
            questions,
            calls,
            results,
            interrupted,
            answers,
        } = found;
        let counts = [*questions, *calls, results + interrupted, *answers];
        let is_right = if is_answered {
            counts == [1; 4]
        } else {
            counts.iter().all(|count| *count <= 1)
        };
        // A call with a known result was executed, and every executed call is on the tape.
        let fits = *results <= ran && ran <= *calls;
        if is_right && fits {
            Ok(())
        } else {
            Err(format!("{found:?}, the tool ran {ran} times"))
        }
    }
}
