//! Every store keeps the promises of the contract.
#![allow(clippy::unwrap_used, reason = "tests")]

use bub_tape::{Durability, FileStore, MemoryStore, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_conforms() {
    conformance::check(MemoryStore::new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_store_conforms_with_either_durability() {
    for durability in [Durability::Os, Durability::Always] {
        let root = tempfile::tempdir().unwrap();
        let number = std::cell::Cell::new(0);
        conformance::check(|| {
            number.set(number.get() + 1);
            FileStore::new(root.path().join(number.get().to_string()), durability)
        })
        .await;
    }
}
