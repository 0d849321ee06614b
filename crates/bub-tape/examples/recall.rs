//! Prints the generated conversations of the recall test with the results of searches, one JSON object per line.
//! With the argument `unseen`, prints the conversations that the search was not adjusted to.
//! `scripts/recall-reference` compares them with a BM25 package for Python.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool for tests"
)]

#[path = "../tests/it/recall_data.rs"]
mod recall_data;

use std::sync::Arc;

use bub_tape::{Entry, MemoryStore, Search, Tape, TapeName};
use serde_json::json;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let conversations = if std::env::args().any(|argument| argument == "unseen") {
        recall_data::unseen_conversations()
    } else {
        recall_data::conversations()
    };
    for conversation in conversations {
        let tape = Tape::new(
            Arc::new(MemoryStore::new()),
            TapeName::new("recall__tape").unwrap(),
        );
        let entries = conversation
            .messages
            .iter()
            .map(|(date, text)| Entry::message("user", text.as_str()).with_date(date));
        runtime
            .block_on(tape.store().append(tape.name(), entries.collect()))
            .unwrap();
        let search = |text: &str| -> Vec<i64> {
            let results = runtime
                .block_on(tape.search(&Search::new(text).limit(10)))
                .unwrap();
            results
                .hits
                .iter()
                .map(|hit| hit.entry.id.get() - 1)
                .collect()
        };
        let questions = conversation.questions.iter().map(|question| {
            json!({
                "evidence": question.evidence,
                "texts": [question.text, question.keywords],
                "found": [search(&question.text), search(&question.keywords)],
            })
        });
        let questions: Vec<_> = questions.collect();
        let messages: Vec<_> = conversation.messages.iter().map(|(_, text)| text).collect();
        println!("{}", json!({"messages": messages, "questions": questions}));
    }
}
