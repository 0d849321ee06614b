//! Search texts and search indexes of any bytes.
//!
//! The first line of the input is the search text, the rest is written over a file of the index. A search must not
//! fail, and its results must not depend on the damage.

use std::fs;

use bub_tape::{Durability, Entry, FileStore, Search, SearchResults, TapeName, TapeStore};

const MESSAGES: usize = 900;

fn search(store: &FileStore, tape: &TapeName, text: &str) -> Option<SearchResults> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    // The only error is an invalid date.
    runtime
        .block_on(
            Search::new(text)
                .limit(3)
                .run(store, std::slice::from_ref(tape)),
        )
        .ok()
}

pub(crate) fn check(bytes: &[u8]) {
    let (text, damage) = bytes.split_at(
        bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(bytes.len()),
    );
    let text = String::from_utf8_lossy(text);
    let root = tempfile::tempdir().unwrap();
    let tape = TapeName::new("fuzz__tape").unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    let message =
        |number: usize| Entry::message("user", format!("{text} {number} {}", "filler ".repeat(45)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime
        .block_on(store.append(&tape, (0..MESSAGES).map(message).collect()))
        .unwrap();
    let expected = search(&store, &tape, &text);
    for file in fs::read_dir(root.path().join(".bub/search"))
        .into_iter()
        .flatten()
    {
        let path = file.unwrap().path();
        if path.file_name().is_some_and(|name| name == "lock") {
            continue;
        }
        let mut content = fs::read(&path).unwrap();
        let start = damage.len() * 7 % content.len().max(1);
        content.splice(
            start..(start + damage.len()).min(content.len()),
            damage.iter().copied(),
        );
        fs::write(&path, content).unwrap();
        assert_eq!(search(&store, &tape, &text), expected, "{}", path.display());
    }
}
