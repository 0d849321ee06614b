//! The search index: derived data that may be deleted or damaged at any time, and processes that are killed while they
//! index.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bub_tape::{
    Durability, Entry, FileStore, Query, Search, SearchResults, Tape, TapeListFilter, TapeName,
    TapeStore,
};

use crate::processes::{Random, block_on, name, run_and_kill_after, spawn};

const TEXTS: [&str; 6] = [
    "common word",
    "When was the zebrafish seen with lantern 7?",
    "zebrafsh",
    "\"rare lantern\" -heron",
    "灯笼鱼",
    "xylophone",
];
/// Enough lines that they are saved, not indexed in memory.
const SAVED_ENTRIES: usize = 900;

fn entry(number: usize) -> Entry {
    let filler = ["heron", "lantern", "quartz", "meadow", "orbit"][number % 5];
    let rare = if number.is_multiple_of(97) {
        "a zebrafish, a rare lantern 灯笼鱼"
    } else {
        "nothing"
    };
    let text = format!(
        "common word {filler} {number} {rare} {}",
        "padding of this line ".repeat(12)
    );
    Entry::message("user", text).with_date(format!(
        "2026-01-01T00:{:02}:{:02}+00:00",
        number / 60 % 60,
        number % 60
    ))
}

async fn append(store: &FileStore, tape: &TapeName, numbers: std::ops::Range<usize>) {
    store
        .append(tape, numbers.map(entry).collect())
        .await
        .unwrap();
}

fn store(root: &Path) -> FileStore {
    FileStore::new(root, Durability::Os)
}

fn index_dir(root: &Path) -> PathBuf {
    root.join(".bub/search")
}

fn segments(root: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(index_dir(root))
        .into_iter()
        .flatten()
        .map(|file| file.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    files.sort();
    files
}

/// Searches all tapes.
async fn answers(root: &Path) -> Vec<SearchResults> {
    answers_to(root, &TEXTS).await
}

async fn answers_to(root: &Path, texts: &[&str]) -> Vec<SearchResults> {
    let store = store(root);
    let tapes = store.list(TapeListFilter::Sessions).await.unwrap();
    let mut answers = Vec::new();
    for text in texts {
        answers.push(Search::new(*text).run(&store, &tapes).await.unwrap());
    }
    answers
}

/// Searches copies of the tapes, with a new index.
async fn rebuilt_answers(root: &Path) -> Vec<SearchResults> {
    rebuilt_answers_to(root, &TEXTS).await
}

async fn rebuilt_answers_to(root: &Path, texts: &[&str]) -> Vec<SearchResults> {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(root).unwrap().map(|file| file.unwrap().path()) {
        if file.is_file() {
            fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    // Locks tell readers where an unfinished batch starts, so they belong to the tapes.
    let locks = root.join(".bub/locks");
    fs::create_dir_all(copy.path().join(".bub/locks")).unwrap();
    for file in fs::read_dir(locks)
        .into_iter()
        .flatten()
        .map(|file| file.unwrap().path())
    {
        fs::copy(
            &file,
            copy.path()
                .join(".bub/locks")
                .join(file.file_name().unwrap()),
        )
        .unwrap();
    }
    answers_to(copy.path(), texts).await
}

#[tokio::test]
async fn appends_do_not_index_and_a_search_indexes_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    append(&store(root.path()), &name(), 0..SAVED_ENTRIES).await;
    assert!(!index_dir(root.path()).exists());
    let first = answers(root.path()).await;
    assert!(
        first.iter().take(5).all(|results| !results.hits.is_empty()),
        "{first:?}"
    );
    let saved = segments(root.path());
    assert_eq!(saved.len(), 1);
    // A short tail is found without being saved.
    let lantern = Entry::message("user", "one more lantern for the xylophone");
    store(root.path())
        .append(&name(), vec![lantern])
        .await
        .unwrap();
    let with_tail = answers(root.path()).await;
    assert_eq!(with_tail[5].hits.len(), 1);
    assert_eq!(segments(root.path()), saved);
    assert_eq!(with_tail, rebuilt_answers(root.path()).await);
    fs::remove_dir_all(index_dir(root.path())).unwrap();
    assert_eq!(answers(root.path()).await, with_tail);
}

#[tokio::test]
async fn many_tapes_share_segments_and_small_segments_are_merged() {
    let root = tempfile::tempdir().unwrap();
    let tape = |number: usize| TapeName::for_session("/srv/demo", &format!("cli:{number}"));
    for round in 0..12 {
        for number in 0..3 {
            let first = (round * 3 + number) * SAVED_ENTRIES / 2;
            append(
                &store(root.path()),
                &tape(number),
                first..first + SAVED_ENTRIES / 2,
            )
            .await;
        }
        let found = answers(root.path()).await;
        if round % 4 == 3 {
            assert_eq!(found, rebuilt_answers(root.path()).await, "round {round}");
        }
    }
    assert!(
        segments(root.path()).len() < 12,
        "{:?}",
        segments(root.path())
    );
    // Results of one tape do not depend on the others.
    let alone = tempfile::tempdir().unwrap();
    fs::copy(
        store(root.path()).path(&tape(1)),
        store(alone.path()).path(&tape(1)),
    )
    .unwrap();
    for text in TEXTS {
        let [shared, alone] =
            [root.path(), alone.path()].map(|root| Tape::new(Arc::new(store(root)), tape(1)));
        let (shared, alone) = (
            shared.search(&Search::new(text)).await,
            alone.search(&Search::new(text)).await,
        );
        assert_eq!(shared.unwrap(), alone.unwrap(), "{text}");
    }
}

#[tokio::test]
async fn a_replaced_or_removed_tape_is_indexed_again() {
    let root = tempfile::tempdir().unwrap();
    append(&store(root.path()), &name(), 0..SAVED_ENTRIES).await;
    answers(root.path()).await;
    let tape = Tape::new(Arc::new(store(root.path())), name());
    tape.reset(false).await.unwrap();
    assert!(answers(root.path()).await[0].hits.is_empty());
    append(&store(root.path()), &name(), 5_000..5_000 + SAVED_ENTRIES).await;
    let found = answers(root.path()).await;
    assert_eq!(found, rebuilt_answers(root.path()).await);
    assert!(!found[0].hits.is_empty());
    fs::remove_file(store(root.path()).path(&name())).unwrap();
    assert!(answers(root.path()).await[0].hits.is_empty());
}

/// A damaged file of the index is no error and changes no answer.
#[tokio::test]
async fn a_torn_or_corrupted_index_is_built_again() {
    let root = tempfile::tempdir().unwrap();
    append(&store(root.path()), &name(), 0..SAVED_ENTRIES).await;
    let expected = answers(root.path()).await;
    let mut random = Random(11);
    for round in 0..60 {
        let mut files = segments(root.path());
        files.push(index_dir(root.path()).join("catalog"));
        let path = &files[round % files.len()];
        let mut bytes = fs::read(path).unwrap();
        let place = usize::try_from(random.below(bytes.len() as u64)).unwrap();
        match round % 3 {
            0 => bytes.truncate(place),
            1 => bytes[place] ^= 1 << random.below(8),
            _ => bytes.clear(),
        }
        fs::write(path, &bytes).unwrap();
        assert_eq!(
            answers(root.path()).await,
            expected,
            "round {round}: {}",
            path.display()
        );
    }
    for file in segments(root.path()) {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(answers(root.path()).await, expected);
}

/// If the index cannot be written, searches work without it.
#[tokio::test]
async fn a_search_does_not_need_to_save_the_index() {
    let root = tempfile::tempdir().unwrap();
    append(&store(root.path()), &name(), 0..SAVED_ENTRIES).await;
    let expected = rebuilt_answers(root.path()).await;
    fs::write(index_dir(root.path()), "a file instead of the directory").unwrap();
    assert_eq!(answers(root.path()).await, expected);
}

/// The child process of the tests below: appends entries and indexes them, until it is killed.
pub(crate) async fn append_and_search(tape: &Tape, first: usize, acknowledge: fn(usize)) {
    for number in (first..).step_by(SAVED_ENTRIES) {
        let entries = (number..number + SAVED_ENTRIES).map(entry);
        tape.append_all(entries.collect()).await.unwrap();
        acknowledge(number + SAVED_ENTRIES - 1);
        tape.search(&Search::new("common")).await.unwrap();
    }
}

/// Number of kills of a process that indexes.
const INDEX_KILLS: u64 = 200;
/// Number of kills before a new tape is started.
const KILLS_PER_TAPE: u64 = 3;

// L2: after a kill, the answers are those of a new index.
#[test]
fn a_process_killed_while_it_indexes_leaves_a_correct_index() {
    let mut random = Random(7);
    let (mut root, mut first) = (tempfile::tempdir().unwrap(), 0);
    for round in 0..INDEX_KILLS {
        if round % KILLS_PER_TAPE == 0 {
            (root, first) = (tempfile::tempdir().unwrap(), 0);
        }
        let delay = Duration::from_micros(random.below(60_000));
        let acknowledged = run_and_kill_after("search", root.path(), first, delay);
        first = acknowledged.map_or(first, |number| number + 1);
        block_on(async {
            let found = answers_to(root.path(), &TEXTS[..2]).await;
            assert!(!found[0].hits.is_empty(), "round {round}");
            assert_eq!(
                found,
                rebuilt_answers_to(root.path(), &TEXTS[..2]).await,
                "round {round}"
            );
        });
    }
}

/// Another process appends and indexes while this one searches. Every search finds all entries that were acknowledged.
#[test]
fn searches_are_correct_while_another_process_appends() {
    let root = tempfile::tempdir().unwrap();
    let mut child = spawn("search", root.path(), 0);
    block_on(async {
        let tape = Tape::new(Arc::new(store(root.path())), name());
        let mut rounds = 0;
        while rounds < 40 {
            let known = tape.info().await.unwrap().entries;
            let results = tape
                .search(&Search::new("common word").limit(5))
                .await
                .unwrap();
            if known > 0 {
                assert_eq!(results.hits.len(), 5);
                rounds += 1;
            }
            // The last entry that this process saw is found by its number.
            if let Some(last) = known.checked_sub(1) {
                let text = format!(
                    "\"common word {} {last}\"",
                    ["heron", "lantern", "quartz", "meadow", "orbit"]
                        [usize::try_from(last % 5).unwrap()]
                );
                let found = tape
                    .search(&Search::new(text).within(Query::new()))
                    .await
                    .unwrap();
                assert_eq!(found.hits.len(), 1, "entry {last}");
            }
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    block_on(async {
        assert_eq!(
            answers(root.path()).await,
            rebuilt_answers(root.path()).await
        );
    });
}

/// A search of a large home indexes only a part of it, and says how much is missing.
#[tokio::test]
async fn a_search_indexes_a_limited_number_of_bytes_and_reports_the_rest() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..3 {
        let tape = TapeName::for_session("/srv/demo", &format!("cli:{number}"));
        let first = number * SAVED_ENTRIES;
        append(&store(root.path()), &tape, first..first + SAVED_ENTRIES).await;
    }
    let limited = store(root.path()).with_index_limit(100_000);
    let tapes = limited.list(TapeListFilter::Sessions).await.unwrap();
    let search = async |text: &str| Search::new(text).run(&limited, &tapes).await.unwrap();
    let mut left = search("common word").await.unindexed_bytes;
    assert!(left > 300_000, "{left}");
    let mut searches = 1;
    while left > 0 {
        let next = search("common word").await.unindexed_bytes;
        assert!(next < left, "{next} of {left}");
        left = next;
        searches += 1;
    }
    assert!(searches > 4, "{searches}");
    assert_eq!(
        answers(root.path()).await,
        rebuilt_answers(root.path()).await
    );
}
