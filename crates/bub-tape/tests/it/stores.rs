//! All stores pass the conformance suite.

use bub_tape::{
    Durability, Entry, EntryRange, FileStore, MemoryStore, TapeListFilter, TapeName, TapeStore,
    testing,
};
use futures_util::TryStreamExt as _;

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_conforms() {
    testing::check_store(MemoryStore::new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_store_conforms_with_either_durability() {
    for durability in [Durability::Os, Durability::Always] {
        let root = tempfile::tempdir().unwrap();
        let number = std::cell::Cell::new(0);
        testing::check_store(|| {
            number.set(number.get() + 1);
            FileStore::new(root.path().join(number.get().to_string()), durability)
        })
        .await;
    }
}

// L5: recently changed tapes are found without opening all tapes.
#[tokio::test]
async fn tapes_that_have_not_changed_since_are_not_listed() {
    let root = tempfile::tempdir().unwrap();
    let store = FileStore::new(root.path(), Durability::Os);
    let [old, new] = ["old", "new"].map(|session| TapeName::for_session("/srv/demo", session));
    let hour = std::time::Duration::from_hours(1);
    let since = std::time::SystemTime::now() - hour;
    for tape in [&old, &new] {
        store
            .append(tape, vec![Entry::message("user", "hi")])
            .await
            .unwrap();
    }
    let file = std::fs::File::options()
        .append(true)
        .open(store.path(&old))
        .unwrap();
    file.set_modified(since - hour).unwrap();
    assert_eq!(
        store
            .list(TapeListFilter::SessionsSince(since))
            .await
            .unwrap(),
        [new]
    );
    store
        .append(&old, vec![Entry::message("user", "again")])
        .await
        .unwrap();
    assert_eq!(
        store
            .list(TapeListFilter::SessionsSince(since))
            .await
            .unwrap()
            .len(),
        2
    );
}

// L1: few threads do all file operations, and a started operation finishes even if its future is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn appends_of_a_crowd_are_made_though_those_who_asked_have_gone() {
    let root = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(FileStore::new(root.path(), Durability::Always));
    let names: Vec<TapeName> = (0..300)
        .map(|number| TapeName::for_session("/srv/demo", &number.to_string()))
        .collect();
    let asked: Vec<_> = names
        .iter()
        .cloned()
        .map(|tape| {
            let store = std::sync::Arc::clone(&store);
            let mut append = Box::pin(async move {
                store
                    .append(&tape, vec![Entry::message("user", "hi")])
                    .await
            });
            // Poll the future once, then drop it.
            let is_over = futures_util::FutureExt::now_or_never(append.as_mut()).is_some();
            (!is_over).then_some(append)
        })
        .collect();
    drop(asked);
    for tape in &names {
        while store.summary(tape).await.unwrap().entries == 0 {
            tokio::task::yield_now().await;
        }
    }
}

// W-16: a reader next to a busy writer sees only complete batches, and all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_never_sees_part_of_a_batch() {
    let root = tempfile::tempdir().unwrap();
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let (writer, reader) = (
        FileStore::new(root.path(), Durability::Os),
        FileStore::new(root.path(), Durability::Os),
    );
    let writing = tokio::spawn({
        let tape = tape.clone();
        async move {
            for _ in 0..150 {
                writer
                    .append(&tape, vec![Entry::message("user", "x".repeat(2_000)); 7])
                    .await
                    .unwrap();
            }
        }
    });
    let mut seen = 0;
    while seen < 1_050 {
        let range = if seen % 2 == 0 {
            EntryRange::ALL
        } else {
            EntryRange::ALL.newest_first()
        };
        let entries: Vec<Entry> = reader.read(&tape, range).try_collect().await.unwrap();
        assert_eq!(entries.len() % 7, 0, "part of a batch");
        assert!(entries.len() >= seen, "entries were seen and are gone");
        seen = entries.len();
        assert_eq!(reader.summary(&tape).await.unwrap().entries % 7, 0);
    }
    writing.await.unwrap();
}

// L1: if a user deletes the directory with the lock files, writers still exclude each other.
#[tokio::test(flavor = "multi_thread")]
async fn lock_files_may_be_deleted_between_appends() {
    let root = tempfile::tempdir().unwrap();
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    let stores = [(); 3].map(|()| FileStore::new(root.path(), Durability::Os));
    for round in 0..30 {
        for store in &stores {
            store
                .append(&tape, vec![Entry::message("user", round.to_string())])
                .await
                .unwrap();
        }
        std::fs::remove_dir_all(root.path().join(".bub")).unwrap();
        let all = stores
            .each_ref()
            .map(|store| store.append(&tape, vec![Entry::message("user", "x")]));
        futures_util::future::join_all(all)
            .await
            .into_iter()
            .for_each(|appended| drop(appended.unwrap()));
    }
    let entries: Vec<Entry> = stores[0]
        .read(&tape, EntryRange::ALL)
        .try_collect()
        .await
        .unwrap();
    assert!(entries.iter().map(|entry| entry.id.get()).eq(1..=180));
}
