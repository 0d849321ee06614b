//! Several processes on one tape, and processes that are killed.
//!
//! The child processes run this test binary. An environment variable sets their role. `BUB_CRASH_ROUNDS` sets the
//! number of kills (500 by default; 5,000 for the long run).

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bub_tape::{
    AnchorQuery, Durability, Entry, EntryKind, EntryRange, FileStore, LeaseWait, MergeBack,
    Sidecar, Tape, TapeListFilter, TapeName, TapeStore, recover_forks,
};
use futures_util::TryStreamExt as _;

use crate::search_index;

const ROLE: &str = "BUB_TAPE_CHILD";
const ROOT: &str = "BUB_TAPE_ROOT";
const FIRST: &str = "BUB_TAPE_FIRST";
const ALWAYS: &str = "BUB_TAPE_ALWAYS";
/// Number of entries per batch. A batch must be large enough that a kill can interrupt it.
const BATCH: usize = 3;
/// Number of rounds before a new tape is started, so that reading the complete tape stays fast.
const ROUNDS_PER_TAPE: u64 = 50;

pub(crate) fn name() -> TapeName {
    TapeName::for_session("/srv/demo", "cli:local")
}

fn numbered(number: usize) -> Entry {
    Entry::message("user", format!("{number}")).with_meta("filler", "章".repeat(200))
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn acknowledge(number: usize) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {number}").unwrap();
    out.flush().unwrap();
}

pub(crate) fn spawn(role: &str, root: &Path, first: usize) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    // About every fourth round writes with fsync.
    if first % 4 == 3 {
        command.env(ALWAYS, "1");
    }
    command
        .args([
            "--exact",
            "processes::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .env(ROOT, root)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The child process. Does nothing unless one of the other tests started it.
#[test]
fn child() {
    let Ok(role) = env::var(ROLE) else { return };
    let durability = if env::var(ALWAYS).is_ok() {
        Durability::Always
    } else {
        Durability::Os
    };
    let mut store = FileStore::new(env::var(ROOT).unwrap(), durability);
    if role.starts_with("chained_") {
        store = store.with_chain();
    }
    let first: usize = env::var(FIRST).unwrap().parse().unwrap();
    let tape = Tape::new(Arc::new(store.clone()), name()).with_sidecars([Sidecar::new("spill")]);
    block_on(async {
        match role.as_str() {
            "append" | "chained_append" => append_forever(&tape, first).await,
            "count" => append_singly(&tape, 2_000).await,
            "fork" => fork_forever(&tape, first).await,
            "reset" | "chained_reset" => reset_forever(&tape, first).await,
            "index" => index_forever(&tape, &store, first).await,
            "search" => search_index::append_and_search(&tape, first, acknowledge).await,
            "lease" => hold_lease(&tape).await,
            other => unreachable!("{other}"),
        }
    });
}

async fn append_forever(tape: &Tape, first: usize) {
    for number in (first..).step_by(BATCH) {
        tape.append_all((number..number + BATCH).map(numbered).collect())
            .await
            .unwrap();
        acknowledge(number + BATCH - 1);
    }
}

async fn append_singly(tape: &Tape, count: usize) {
    for number in 0..count {
        tape.append(Entry::message("user", number.to_string()))
            .await
            .unwrap();
    }
}

async fn fork_forever(tape: &Tape, first: usize) {
    for number in (first..).step_by(BATCH) {
        let fork = tape.fork(MergeBack::Yes).await.unwrap();
        fork.tape()
            .append_all((number..number + BATCH).map(numbered).collect())
            .await
            .unwrap();
        fork.tape()
            .sidecar("spill")
            .unwrap()
            .append(numbered(number))
            .await
            .unwrap();
        acknowledge(number + BATCH - 1);
        fork.merge().await.unwrap();
    }
}

async fn reset_forever(tape: &Tape, first: usize) {
    for number in first.. {
        tape.append_all((0..BATCH).map(|_| numbered(number)).collect())
            .await
            .unwrap();
        acknowledge(number);
        tape.reset(true).await.unwrap();
    }
}

async fn index_forever(tape: &Tape, store: &FileStore, first: usize) {
    for number in first.. {
        tape.append_all(vec![Entry::anchor("a", None), numbered(number)])
            .await
            .unwrap();
        acknowledge(number);
        store.reindex(tape.name()).await.unwrap();
    }
}

async fn hold_lease(tape: &Tape) {
    let _lease = tape.lease(LeaseWait::No).await.unwrap();
    acknowledge(0);
    std::future::pending::<()>().await;
}

/// A generator of pseudorandom numbers from a seed, so that a failing round can be repeated.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn rounds() -> u64 {
    env::var("BUB_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(500)
}

/// Starts a child and kills it at a random moment after its first acknowledgment. Returns the last acknowledged number.
fn run_and_kill(role: &str, root: &Path, first: usize, random: &mut Random) -> Option<usize> {
    let moment = Duration::from_micros(random.below(2_500));
    run_and_kill_after(role, root, first, moment)
}

/// Starts a child and kills it after its first acknowledgment and a delay. Returns the last acknowledged number.
pub(crate) fn run_and_kill_after(
    role: &str,
    root: &Path,
    first: usize,
    delay: Duration,
) -> Option<usize> {
    let mut child = spawn(role, root, first);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("ack") && output.read_line(&mut line).unwrap() > 0 {
        if !line.starts_with("ack") {
            line.clear();
        }
    }
    // This sleep does not wait for an event: it varies the moment of the kill.
    let moment = Instant::now() + delay;
    while Instant::now() < moment {
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut remaining_output = String::new();
    output.read_to_string(&mut remaining_output).unwrap();
    // The kill may have truncated the last line.
    let complete_lines = remaining_output
        .rsplit_once('\n')
        .map_or("", |(lines, _)| lines);
    line.lines()
        .chain(complete_lines.lines())
        .filter_map(|line| line.strip_prefix("ack ")?.parse().ok())
        .next_back()
}

async fn read(store: &FileStore, range: EntryRange) -> Vec<Entry> {
    let entries: Vec<Entry> = store.read(&name(), range).try_collect().await.unwrap();
    assert!(
        entries.windows(2).all(|pair| pair[0].id < pair[1].id),
        "ids do not ascend"
    );
    entries
}

fn numbers(entries: &[Entry]) -> Vec<usize> {
    let messages = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Message);
    messages
        .filter_map(|entry| entry.payload["content"].as_str()?.parse().ok())
        .collect()
}

// L1, W-1, W-3, W-16: a killed writer loses no acknowledged entry.
#[test]
fn a_killed_writer_loses_nothing_it_acknowledged() {
    let mut root = tempfile::tempdir().unwrap();
    let mut random = Random(1);
    let mut first = 0;
    for round in 0..rounds() {
        if round % ROUNDS_PER_TAPE == 0 {
            (root, first) = (tempfile::tempdir().unwrap(), 0);
        }
        let acknowledged = run_and_kill("append", root.path(), first, &mut random);
        let store = FileStore::new(root.path(), Durability::Os);
        let tail = block_on(end_of_tape(&store)).unwrap_or(first);
        if let Some(acknowledged) = acknowledged {
            assert!(
                tail > acknowledged,
                "round {round}: {acknowledged} was acknowledged, the tape ends at {tail}"
            );
        }
        assert_eq!(tail % BATCH, 0, "round {round}: half a batch");
        first = tail;
        if (round + 1) % ROUNDS_PER_TAPE == 0 || round + 1 == rounds() {
            block_on(check_complete(&store, first));
        }
    }
}

/// Number of kills of a process that writes a chained tape.
const CHAIN_KILLS: u64 = 200;

// L1: a killed writer leaves a valid hash chain, before and after the next append. Every fourth round resets the tape.
#[test]
fn a_killed_writer_leaves_a_valid_chain() {
    let root = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    let mut first = 0;
    for round in 0..CHAIN_KILLS {
        let role = match round % 4 {
            3 => "chained_reset",
            _ => "chained_append",
        };
        let acknowledged = run_and_kill(role, root.path(), first, &mut random);
        first = acknowledged.map_or(first, |number| number + 1);
        let store = FileStore::new(root.path(), Durability::Os).with_chain();
        block_on(async {
            let report = store.verify_chain(&name(), None).await.unwrap();
            assert_eq!(report.into_problem(), None, "round {round}");
            let tape = Tape::new(Arc::new(store.clone()), name());
            tape.append(Entry::event("round", None)).await.unwrap();
            let report = store.verify_chain(&name(), None).await.unwrap();
            assert_eq!((report.before, report.unchained), (0, 0), "round {round}");
            assert!(report.chained > 0, "round {round}");
            let problem = report.into_problem();
            assert_eq!(problem, None, "round {round}, after the next append");
        });
    }
}

/// Returns the number after the last one on the tape.
async fn end_of_tape(store: &FileStore) -> Option<usize> {
    let tape = name();
    let mut newest = store.read(&tape, EntryRange::ALL.newest_first());
    while let Some(entry) = newest.try_next().await.unwrap() {
        if let Some(last) = numbers(&[entry]).last() {
            return Some(last + 1);
        }
    }
    None
}

/// Checks that the tape contains exactly the numbers below `count`, before and after the next append.
///
/// The kill may have left complete lines of an unfinished batch in the file. Readers skip them, and the next append
/// removes them. After it, the file must contain nothing but the entries that readers see.
async fn check_complete(store: &FileStore, count: usize) {
    check_numbers(store, count).await;
    let tape = Tape::new(Arc::new(store.clone()), name());
    tape.append(Entry::event("round", None)).await.unwrap();
    let entries = check_numbers(store, count).await;
    let bytes = std::fs::read(store.path(&name())).unwrap();
    let lines: Option<Vec<Entry>> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(bub_tape::codec::decode)
        .collect();
    assert!(lines.is_some(), "an unreadable line is left on the tape");
    assert!(
        lines == Some(entries),
        "the file contains lines that readers skip"
    );
}

/// Checks that the messages on the tape are the numbers below `count`, and returns all entries.
async fn check_numbers(store: &FileStore, count: usize) -> Vec<Entry> {
    let entries = read(store, EntryRange::ALL).await;
    assert!(
        numbers(&entries).into_iter().eq(0..count),
        "a gap, a repetition or disorder"
    );
    let summary = store.summary(&name()).await.unwrap();
    assert_eq!(summary.entries, entries.len() as u64);
    entries
}

// S-64, W-2: a fork whose process is killed before, during or after its merge is merged exactly once.
#[test]
fn a_fork_killed_anywhere_is_merged_once() {
    let mut root = tempfile::tempdir().unwrap();
    let mut random = Random(2);
    let mut first = 0;
    for round in 0..rounds().div_ceil(5) {
        if round % ROUNDS_PER_TAPE == 0 {
            (root, first) = (tempfile::tempdir().unwrap(), 0);
        }
        let acknowledged = run_and_kill("fork", root.path(), first, &mut random);
        let store = FileStore::new(root.path(), Durability::Os);
        block_on(async {
            recover_forks(&store, &name()).await.unwrap();
            assert!(
                store
                    .list(TapeListFilter::AllForks)
                    .await
                    .unwrap()
                    .is_empty()
            );
            let entries = read(&store, EntryRange::ALL).await;
            let seen = numbers(&entries);
            assert!(
                seen.iter().copied().eq(0..seen.len()),
                "round {round}: {seen:?}"
            );
            assert!(
                acknowledged.is_none_or(|number| seen.len() > number),
                "round {round}: lost {acknowledged:?}"
            );
            let spilled: Vec<Entry> = store
                .read(&name().sidecar("spill").unwrap(), EntryRange::ALL)
                .try_collect()
                .await
                .unwrap();
            let spilled = numbers(&spilled);
            assert!(
                spilled.windows(2).all(|pair| pair[0] < pair[1]),
                "round {round}: {spilled:?}"
            );
            let last = acknowledged.map(|number| number + 1 - BATCH);
            assert!(
                last.is_none_or(|number| spilled.contains(&number)),
                "round {round}: the sidecar lost {last:?}"
            );
            first = seen.len();
        });
    }
}

// W-12, W-19, H-60: a killed reset leaves the old or the new tape, and complete archives.
#[test]
fn a_killed_reset_loses_neither_tape_nor_archive() {
    let root = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    let mut first = 0;
    for round in 0..rounds().div_ceil(5) {
        let acknowledged = run_and_kill("reset", root.path(), first, &mut random);
        let store = FileStore::new(root.path(), Durability::Os);
        let mut seen = BTreeSet::new();
        block_on(async {
            let tape = Tape::new(Arc::new(store.clone()), name());
            tape.append(Entry::event("round", None)).await.unwrap();
            let present = numbers(&read(&store, EntryRange::ALL).await);
            assert!(
                present.len().is_multiple_of(BATCH),
                "round {round}: {present:?}"
            );
            seen.extend(present);
        });
        for path in std::fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.extension().is_some_and(|extension| extension == "bak")
                && !path.to_string_lossy().contains("spill")
            {
                let bytes = std::fs::read(&path).unwrap();
                let lines: Vec<Entry> = bytes
                    .split_inclusive(|byte| *byte == b'\n')
                    .map(|line| bub_tape::codec::decode(line).unwrap())
                    .collect();
                seen.extend(numbers(&lines));
            }
        }
        let last = acknowledged.unwrap_or(first);
        assert!(
            (first..=last).all(|number| acknowledged.is_none() || seen.contains(&number)),
            "round {round}: {last}"
        );
        first = seen.last().map_or(first, |last| last + 1);
        // The archives of earlier rounds were already checked. Remove them to make the next rounds faster.
        for path in std::fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.extension().is_some_and(|extension| extension == "bak") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

// L2, L5: an index that was incompletely written is used only as far as it is correct.
#[test]
fn a_killed_index_write_changes_no_answer() {
    let mut root = tempfile::tempdir().unwrap();
    let mut random = Random(4);
    let mut first = 0;
    for round in 0..rounds().div_ceil(5) {
        if round % ROUNDS_PER_TAPE == 0 {
            (root, first) = (tempfile::tempdir().unwrap(), 0);
        }
        let acknowledged = run_and_kill("index", root.path(), first, &mut random);
        let store = FileStore::new(root.path(), Durability::Os);
        block_on(async {
            let entries = read(&store, EntryRange::ALL).await;
            let seen = numbers(&entries);
            assert!(seen.iter().copied().eq(0..seen.len()), "round {round}");
            assert!(
                acknowledged.is_none_or(|number| seen.len() > number),
                "round {round}: lost {acknowledged:?}"
            );
            assert_eq!(
                store.summary(&name()).await.unwrap().entries,
                entries.len() as u64,
                "round {round}"
            );
            let marks = store.anchors(&name(), AnchorQuery::All).await.unwrap();
            let anchors = entries
                .iter()
                .filter(|entry| entry.kind == EntryKind::Anchor)
                .map(|entry| entry.id);
            assert!(
                marks.iter().map(|mark| mark.id).eq(anchors),
                "round {round}"
            );
            first = seen.len();
        });
    }
}

// W-16, S-56: with eight processes on one tape, no id occurs twice and none is missing.
#[test]
fn eight_processes_append_two_thousand_entries_each() {
    let root = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..8).map(|_| spawn("count", root.path(), 0)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let store = FileStore::new(root.path(), Durability::Os);
    let entries = block_on(read(&store, EntryRange::ALL));
    assert!(entries.iter().map(|entry| entry.id.get()).eq(1..=16_000));
    let mut counted = numbers(&entries);
    counted.sort_unstable();
    assert!(
        counted
            .chunks(8)
            .enumerate()
            .all(|(number, eight)| eight == [number; 8])
    );
    assert_eq!(block_on(store.summary(&name())).unwrap().entries, 16_000);
    assert!(
        block_on(store.anchors(&name(), AnchorQuery::All))
            .unwrap()
            .is_empty()
    );
}

// L4: the operating system releases the lease of a killed process.
#[test]
fn a_lease_is_free_again_when_its_holder_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let mut child = spawn("lease", root.path(), 0);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ack") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let store = FileStore::new(root.path(), Durability::Os);
    let refused =
        block_on(store.lease(&name(), LeaseWait::For(Duration::from_millis(1)))).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains(&format!("process {}", child.id())),
        "{refused}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    drop(block_on(store.lease(&name(), LeaseWait::No)).unwrap());
}
