//! The hash chain of tapes: every change is found, and nothing else is reported.

use std::{fs, path::PathBuf, sync::Arc};

use bub_tape::{
    ChainProblem, ChainReport, Durability, Entry, EntryId, EntryKind, EntryRange, ExportSeal,
    FileStore, ResetRequest, SessionInfo, Tape, TapeName, TapeStore, ViewOptions, codec,
};
use tempfile::TempDir;

/// Number of entries of the tape that is changed.
const ENTRIES: usize = 1_000;

struct ChainFixture {
    root: TempDir,
    name: TapeName,
}

impl ChainFixture {
    fn new() -> Self {
        Self {
            root: TempDir::new().unwrap(),
            name: TapeName::new("chain__tape").unwrap(),
        }
    }

    fn store(&self) -> FileStore {
        FileStore::new(self.root.path(), Durability::Os).with_chain()
    }

    fn path(&self) -> PathBuf {
        self.store().path(&self.name)
    }

    async fn append(&self, texts: impl IntoIterator<Item = String>) {
        let tape = Tape::new(Arc::new(self.store()), self.name.clone());
        let batch = texts.into_iter().map(|text| Entry::message("user", text));
        tape.append_all(batch.collect()).await.unwrap();
    }

    async fn verify(&self) -> ChainReport {
        self.store().verify_chain(&self.name, None).await.unwrap()
    }

    async fn with_entries(count: usize) -> Self {
        let fixture = Self::new();
        for start in (0..count).step_by(100) {
            fixture
                .append((start..count.min(start + 100)).map(|number| format!("message {number}")))
                .await;
        }
        fixture
    }
}

#[tokio::test]
async fn a_chained_tape_is_valid_and_readable() {
    let fixture = ChainFixture::with_entries(250).await;
    let report = fixture.verify().await;
    assert_eq!(
        (report.chained, report.before, report.unchained),
        (250, 0, 0)
    );
    assert_eq!(report.problem, None);
    let tape = Tape::new(Arc::new(fixture.store()), fixture.name.clone());
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    assert_eq!(entries.len(), 250);
    // The keys of the format of the Python version come first, unchanged.
    let line = fs::read_to_string(fixture.path()).unwrap();
    let line = line.lines().next().unwrap();
    assert!(
        line.starts_with(
            r#"{"id": 1, "kind": "message", "payload": {"role": "user", "content": "message 0"}, "meta": {}, "date": ""#
        ),
        "{line}"
    );
}

/// Returns the lines of an export with its end mark.
async fn export(fixture: &ChainFixture) -> Vec<String> {
    let tape = Tape::new(Arc::new(fixture.store()), fixture.name.clone());
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let problem = tape.store().chain_problem(tape.name()).await.unwrap();
    let mut seal = ExportSeal::new(problem);
    for entry in &entries {
        seal.add_entry(entry);
    }
    let all = entries.into_iter().chain(seal.end_mark());
    all.map(|entry| codec::encode(&entry)).collect()
}

fn verify_lines(lines: &[String]) -> ChainReport {
    ChainReport::of_lines(lines.concat().as_bytes(), None).unwrap()
}

#[tokio::test]
async fn an_export_has_the_chain_of_its_tape_and_every_truncation_of_it_is_found() {
    let fixture = ChainFixture::with_entries(250).await;
    let lines = export(&fixture).await;
    assert_eq!(lines.len(), 251);
    let path = fixture.root.path().join("export.jsonl");
    fs::write(&path, lines.concat()).unwrap();
    assert_eq!(
        ChainReport::of_file(&path, None).unwrap(),
        fixture.verify().await
    );
    for count in 1..lines.len() {
        let report = verify_lines(&lines[..count]);
        assert_eq!(
            (report.problem, report.is_complete),
            (None, false),
            "{count}"
        );
    }
    // Entries that are missing before the end mark break the chain, and a line after it is not part of the export.
    for missing in 0..250 {
        let mut part = lines.clone();
        part.remove(missing);
        assert_ne!(verify_lines(&part).problem, None, "{missing}");
    }
    let foreign = lines[0].replace(", \"chain\"", ", \"other\"");
    assert!(!verify_lines(&[lines.clone(), vec![foreign]].concat()).is_complete);
    // Without the hashes, the end mark shows that there were some.
    let plain = |line: &String| line.split_once(", \"chain\"").unwrap().0.to_owned() + "}\n";
    let stripped: Vec<String> = lines.iter().map(plain).collect();
    let problem = verify_lines(&stripped).problem;
    assert!(
        matches!(problem, Some(ChainProblem::Altered { line: 251, .. })),
        "{problem:?}"
    );
    // A tape without a chain is exported as it is.
    let entry = Entry::message("user", "plain");
    let mut seal = ExportSeal::default();
    seal.add_entry(&entry);
    assert_eq!((seal.end_mark(), seal.entry_count()), (None, 1));
}

/// A head that was kept elsewhere, such as the hash of an anchor, proves the entries up to it, also after further entries.
#[tokio::test]
async fn a_known_head_proves_all_entries_up_to_it() {
    let fixture = ChainFixture::with_entries(5).await;
    let tape = Tape::new(Arc::new(fixture.store()), fixture.name.clone());
    tape.handoff("phase", None).await.unwrap();
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let anchor = entries.iter().find(|entry| entry.kind == EntryKind::Anchor);
    let anchor = anchor.unwrap();
    let head = anchor.extra["chain"].as_str().unwrap();
    fixture.append(["later".to_owned()]).await;
    let store = fixture.store();
    let report = store.verify_chain(&fixture.name, Some(head)).await.unwrap();
    let proven = report.proven.unwrap();
    assert_eq!((proven.id, proven.line), (Some(anchor.id), 6));
    // The event of the handoff, and the new message.
    assert_eq!(proven.following, 2);
    for other in ["0", &"0".repeat(64), "head"] {
        let report = store.verify_chain(&fixture.name, Some(other)).await;
        assert_eq!(report.unwrap().proven, None);
    }
}

/// An export can be used as a tape, also by the Python version: the end mark is an event outside of the context.
#[tokio::test]
async fn an_export_is_a_tape_to_which_entries_can_be_appended() {
    let fixture = ChainFixture::with_entries(5).await;
    let lines = export(&fixture).await;
    let copy = ChainFixture::new();
    fs::write(copy.path(), lines.concat()).unwrap();
    copy.append(["more".to_owned()]).await;
    let report = copy.verify().await;
    assert_eq!((report.chained, report.problem), (7, None));
    assert!(report.is_complete);
    let tape = Tape::new(Arc::new(copy.store()), copy.name.clone());
    let view = tape.view(&ViewOptions::new()).await.unwrap();
    assert_eq!(view.messages.len(), 6);
}

#[tokio::test]
async fn a_removed_tape_is_missing_unless_the_store_discarded_it() {
    let fixture = ChainFixture::with_entries(3).await;
    let store = fixture.store();
    assert_eq!(store.missing_tapes().await.unwrap(), []);
    fs::remove_file(fixture.path()).unwrap();
    let missing = store.missing_tapes().await.unwrap();
    let missing: Vec<_> = missing
        .iter()
        .map(|tape| (&tape.name, tape.had_chain))
        .collect();
    assert_eq!(missing, [(&fixture.name, true)]);
    // A new entry does not hide that the others were removed.
    fixture.append(["again".to_owned()]).await;
    assert_eq!(store.missing_tapes().await.unwrap(), []);
    let problem = fixture.verify().await.problem;
    assert!(
        matches!(problem, Some(ChainProblem::Altered { line: 1, .. })),
        "{problem:?}"
    );
    store.discard(&fixture.name).await.unwrap();
    assert_eq!(store.missing_tapes().await.unwrap(), []);
    fixture.append(["a new tape".to_owned()]).await;
    assert_eq!(fixture.verify().await.problem, None);
}

#[tokio::test]
async fn without_its_lock_record_the_end_of_a_tape_is_not_proven() {
    let fixture = ChainFixture::with_entries(3).await;
    assert!(fixture.verify().await.is_complete);
    fs::remove_dir_all(fixture.root.path().join(".bub/locks")).unwrap();
    let report = fixture.verify().await;
    assert_eq!((report.problem, report.is_complete), (None, false));
}

/// Lines that are not entries are not part of the chain, so a repair can remove them. It keeps the last value of the chain.
#[tokio::test]
async fn a_repair_of_foreign_lines_keeps_the_chain_valid() {
    let fixture = ChainFixture::with_entries(3).await;
    let garbage = |content: String| content + "garbage of another program\n";
    let rewrite = |change: &dyn Fn(String) -> String| {
        let content = fs::read_to_string(fixture.path()).unwrap();
        fs::write(fixture.path(), change(content)).unwrap();
    };
    rewrite(&garbage);
    fixture.append(["four".to_owned(), "five".to_owned()]).await;
    rewrite(&garbage);
    let report = fixture.verify().await;
    assert_eq!((report.invalid, report.problem), (2, None));
    let repaired = fixture.store().repair(&fixture.name).await.unwrap();
    assert_eq!(repaired.done, ["removed 2 invalid lines"]);
    fixture.append(["after the repair".to_owned()]).await;
    let report = fixture.verify().await;
    assert_eq!((report.chained, report.invalid), (7, 0));
    assert_eq!((report.problem, report.is_complete), (None, true));
}

/// A change of the lines of a tape, and the line at which it is found.
type Change<'a> = (&'a dyn Fn(&mut Vec<String>), u64);

/// Whatever part of the chain is replaced by an invalid line, a repair does not hide it, nor do later entries.
#[tokio::test]
async fn a_repair_never_makes_a_broken_chain_valid() {
    let lines = |content: &str| -> Vec<String> {
        let lines = content.split_inclusive('\n');
        lines.map(str::to_owned).collect()
    };
    let replaced = |part: std::ops::Range<usize>| {
        move |content: &mut Vec<String>| drop(content.splice(part.clone(), ["garbage\n".into()]))
    };
    let altered = |content: &mut Vec<String>| {
        content[30] = content[30].replace("message 30", "message 03");
        content.insert(30, "garbage\n".to_owned());
    };
    let changes: [Change<'_>; 5] = [
        (&replaced(1..62), 2),
        (&replaced(0..1), 1),
        (&replaced(62..63), 63),
        (&replaced(1..63), 2),
        (&altered, 31),
    ];
    for (change, expected) in changes {
        let fixture = ChainFixture::with_entries(63).await;
        let head = fixture.verify().await.head.unwrap();
        let mut content = lines(&fs::read_to_string(fixture.path()).unwrap());
        change(&mut content);
        fs::write(fixture.path(), content.concat()).unwrap();
        assert_ne!(fixture.verify().await.problem, None, "{expected}");
        let kept = fixture.store().repair(&fixture.name).await.unwrap().kept;
        for _ in 0..2 {
            let store = fixture.store();
            let report = store.verify_chain(&fixture.name, Some(&head)).await;
            match report.unwrap().problem {
                Some(ChainProblem::Repaired { line, kept: file }) => {
                    assert_eq!((line, &[file][..]), (expected, &*kept));
                }
                // The event about the repair continues from the missing entry.
                Some(ChainProblem::Altered { line, .. }) => assert_eq!(line, expected),
                other => panic!("{expected}: {other:?}"),
            }
            fixture.append(["later".to_owned()]).await;
        }
    }
}

/// The first chained entry covers what precedes it, so nothing can be added, altered or removed there.
#[tokio::test]
async fn the_start_of_a_chain_covers_the_entries_before_it() {
    let fixture = ChainFixture::new();
    let plain = FileStore::new(fixture.root.path(), Durability::Os);
    let plain = Tape::new(Arc::new(plain), fixture.name.clone());
    for text in ["one", "two"] {
        plain.append(Entry::message("user", text)).await.unwrap();
    }
    fixture.append(["three".to_owned()]).await;
    let report = fixture.verify().await;
    assert_eq!((report.before, report.chained), (2, 1));
    assert_eq!((report.problem, report.is_start_uncovered), (None, false));
    let head = report.head.unwrap();
    let content = fs::read_to_string(fixture.path()).unwrap();
    let (first, rest) = content.split_once('\n').unwrap();
    let changed = [
        format!("{first}\n{content}"),
        rest.to_owned(),
        content.replace("two", "2"),
    ];
    for changed in changed {
        let report = ChainReport::of_lines(changed.as_bytes(), Some(&head)).unwrap();
        let problem = report.problem;
        assert!(
            matches!(problem, Some(ChainProblem::Altered { id: Some(id), .. }) if id.get() == 3),
            "{problem:?}"
        );
    }
    // A chain that starts with the tape.
    let fixture = ChainFixture::with_entries(2).await;
    let content = fs::read_to_string(fixture.path()).unwrap();
    let forged = format!("{first}\n{content}");
    let report = ChainReport::of_lines(forged.as_bytes(), None).unwrap();
    assert!(
        matches!(report.problem, Some(ChainProblem::Inserted { line: 1, .. })),
        "{report:?}"
    );
}

/// A chain of an older version, whose first hash starts with 32 zero bytes.
#[test]
fn an_older_chain_is_valid_but_does_not_cover_the_entries_before_it() {
    let before = r#"{"id": 1, "kind": "message", "payload": {"role": "user", "content": "one"}, "meta": {}, "date": "2026-11-18T08:00:00+00:00"}"#;
    let chained = r#"{"id": 2, "kind": "message", "payload": {"role": "user", "content": "two"}, "meta": {}, "date": "2026-11-18T08:00:01+00:00", "chain": "40e1c58742728ccb4abac8fc5e4ab22251d9e900e4b47b9e64a3085c29c0a460"}"#;
    let report = ChainReport::of_lines(format!("{before}\n{chained}\n").as_bytes(), None);
    let report = report.unwrap();
    assert_eq!((report.before, report.chained), (1, 1));
    assert_eq!((report.problem, report.is_start_uncovered), (None, true));
}

#[tokio::test]
async fn every_changed_byte_is_found() {
    let fixture = ChainFixture::with_entries(ENTRIES).await;
    let (path, original) = (fixture.path(), fs::read(fixture.path()).unwrap());
    let lines: Vec<(usize, usize)> = line_ranges(&original);
    let broken = |lines: &[u8]| ChainReport::of_lines(lines, None).unwrap().broken;
    // Reading the complete tape for each of its bytes would take minutes. A change breaks the chain at its line or at the
    // next one, so it is enough to read these two and the one before. That one is broken, because its own predecessor is
    // missing.
    for (index, window) in lines.windows(3).enumerate() {
        let start = window[0].0;
        let mut part = original[start..window[2].1].to_vec();
        assert_eq!(broken(&part), u64::from(index > 0));
        for position in window[1].0 - start..window[1].1 - start {
            part[position] ^= 1;
            assert!(
                broken(&part) > u64::from(index > 0),
                "byte {position} of line {}",
                index + 2
            );
            part[position] ^= 1;
        }
    }
    // All bytes of the first and of the last line.
    let ends = (lines[0].0..lines[0].1).chain(lines[ENTRIES - 1].0..original.len());
    for position in ends.step_by(3) {
        let mut changed = original.clone();
        changed[position] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert_ne!(fixture.verify().await.problem, None, "byte {position}");
    }
    // The complete tape, with a sample of its bytes: the first bad entry is the changed one.
    for position in (0..original.len())
        .step_by(original.len() / 300)
        .chain([original.len() - 1])
    {
        let mut changed = original.clone();
        changed[position] ^= 1;
        fs::write(&path, &changed).unwrap();
        let report = fixture.verify().await;
        let line = lines
            .iter()
            .position(|(start, end)| (*start..*end).contains(&position))
            .unwrap() as u64
            + 1;
        match report.problem {
            Some(
                ChainProblem::Altered { line: found, .. }
                | ChainProblem::Damaged { line: found, .. },
            ) => {
                assert_eq!(found, line, "byte {position}");
            }
            other => panic!("byte {position} of line {line}: {other:?}"),
        }
    }
    fs::write(&path, &original).unwrap();
    assert_eq!(fixture.verify().await.problem, None);
}

fn line_ranges(bytes: &[u8]) -> Vec<(usize, usize)> {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let ends: Vec<usize> = ends.map(|(index, _)| index + 1).collect();
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends.iter().copied()).collect()
}

#[tokio::test]
async fn every_deleted_and_swapped_entry_is_found() {
    let fixture = ChainFixture::with_entries(ENTRIES).await;
    let (path, original) = (fixture.path(), fs::read(fixture.path()).unwrap());
    let lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
    for index in 0..ENTRIES {
        let mut deleted = lines.clone();
        deleted.remove(index);
        fs::write(&path, deleted.concat()).unwrap();
        let problem = fixture.verify().await.problem;
        let line = index as u64 + 1;
        match problem {
            Some(ChainProblem::Altered { line: found, .. }) => assert_eq!(found, line),
            Some(ChainProblem::Truncated { .. }) => assert_eq!(index, ENTRIES - 1),
            other => panic!("entry {line} is missing: {other:?}"),
        }
        if index + 1 < ENTRIES {
            let mut swapped = lines.clone();
            swapped.swap(index, index + 1);
            fs::write(&path, swapped.concat()).unwrap();
            let problem = fixture.verify().await.problem;
            let id = Some(EntryId::new(i64::try_from(index).unwrap() + 2));
            assert_eq!(problem, Some(ChainProblem::Altered { id, line }));
        }
    }
}

#[tokio::test]
async fn every_truncation_is_found_also_after_further_entries() {
    let fixture = ChainFixture::with_entries(ENTRIES).await;
    let (path, original) = (fixture.path(), fs::read(fixture.path()).unwrap());
    let ranges = line_ranges(&original);
    for index in (0..ENTRIES).rev() {
        for end in [ranges[index].0, ranges[index].0.midpoint(ranges[index].1)] {
            fs::write(&path, &original[..end]).unwrap();
            let problem = fixture.verify().await.problem;
            assert_eq!(
                problem,
                Some(ChainProblem::Truncated {
                    line: index as u64,
                    uncovered: None
                }),
                "{end}"
            );
        }
    }
    // A new entry does not hide that others were removed.
    fs::write(&path, &original[..ranges[900].0]).unwrap();
    fixture.append(["after the removal".to_owned()]).await;
    let problem = fixture.verify().await.problem;
    assert!(
        matches!(problem, Some(ChainProblem::Altered { line: 901, .. })),
        "{problem:?}"
    );
}

/// L6: the Python version may append to the tape. That is not tampering.
#[tokio::test]
async fn entries_of_the_python_version_are_unchained_and_covered_by_the_next_entry() {
    let fixture = ChainFixture::with_entries(10).await;
    let foreign = r#"{"id": 11, "kind": "message", "payload": {"role": "user", "content": "from Python"}, "meta": {}, "date": "2026-11-18T08:00:00+00:00"}"#;
    let mut content = fs::read_to_string(fixture.path()).unwrap();
    content.push_str(foreign);
    content.push('\n');
    fs::write(fixture.path(), &content).unwrap();
    let report = fixture.verify().await;
    assert_eq!(
        (report.chained, report.unchained, report.problem),
        (10, 1, None)
    );
    fixture.append(["from here".to_owned()]).await;
    let report = fixture.verify().await;
    assert_eq!(
        (report.chained, report.unchained, report.problem),
        (11, 1, None)
    );
    let altered = fs::read_to_string(fixture.path())
        .unwrap()
        .replace("from Python", "from Rust");
    fs::write(fixture.path(), altered).unwrap();
    let problem = fixture.verify().await.problem;
    let expected = ChainProblem::Altered {
        id: Some(EntryId::new(12)),
        line: 12,
    };
    assert_eq!(problem, Some(expected));
}

/// An entry that was inserted between two chained entries is named, and not the chained one after it.
#[tokio::test]
async fn an_entry_that_was_inserted_later_is_named_as_unchained() {
    let foreign = r#"{"id": 99, "kind": "message", "payload": {"role": "user", "content": "never said"}, "meta": {}, "date": "2026-11-18T08:00:00+00:00"}"#;
    for position in 0..10 {
        let fixture = ChainFixture::with_entries(10).await;
        let content = fs::read_to_string(fixture.path()).unwrap();
        let mut lines: Vec<&str> = content.lines().collect();
        lines.insert(position, foreign);
        fs::write(fixture.path(), lines.join("\n") + "\n").unwrap();
        let id = Some(EntryId::new(99));
        let line = position as u64 + 1;
        let report = fixture.verify().await;
        assert_eq!(report.problem, Some(ChainProblem::Inserted { id, line }));
        assert_eq!((report.broken, report.before + report.unchained), (1, 1));
    }
}

/// Without the end of a tape and its lock record, the rest of the chain is valid. The next entry says so permanently.
#[tokio::test]
async fn a_removed_end_without_a_lock_record_stays_noticed() {
    let fixture = ChainFixture::with_entries(10).await;
    let (store, path) = (fixture.store(), fixture.path());
    let original = fs::read(&path).unwrap();
    let head = |line: usize| {
        let content = String::from_utf8(original.clone()).unwrap();
        let line = content.lines().nth(line - 1).unwrap().to_owned();
        line.rsplit('"').nth(1).unwrap().to_owned()
    };
    let ranges = line_ranges(&original);
    fs::write(&path, &original[..ranges[7].0]).unwrap();
    fs::remove_dir_all(fixture.root.path().join(".bub/locks")).unwrap();
    for round in 0..3 {
        fixture.append([format!("later {round}")]).await;
        let report = fixture.verify().await;
        assert_eq!((report.problem, report.is_complete), (None, true));
        let unproven = report.unproven.unwrap();
        assert_eq!((unproven.id.get(), unproven.line), (8, 8));
        // A head from before the removed end does not prove it. The head of the last entry that is left does.
        for (line, is_proven) in [(6, false), (7, true)] {
            let known = store.verify_chain(&fixture.name, Some(&head(line))).await;
            let known = known.unwrap();
            assert!(known.proven.is_some());
            assert_eq!(known.unproven.is_none(), is_proven, "{line}");
        }
        // A head of the removed end is not found.
        let lost = store.verify_chain(&fixture.name, Some(&head(9))).await;
        assert_eq!(lost.unwrap().proven, None);
    }
    // The event is part of the chain.
    let content = fs::read_to_string(&path).unwrap();
    let kept = content
        .lines()
        .filter(|line| !line.contains("tape.end_unknown"));
    let kept: Vec<&str> = kept.collect();
    fs::write(&path, kept.join("\n") + "\n").unwrap();
    assert_ne!(fixture.verify().await.problem, None);
}

/// A copy has a new chain. It must not hide that the source was tampered with.
#[tokio::test]
async fn a_copy_of_a_broken_tape_is_broken() {
    type Change = fn(&mut Vec<String>);
    let changes: [(Change, Option<usize>); 5] = [
        (
            |lines| lines[4] = lines[4].replace("message 4", "message 5"),
            Some(5),
        ),
        (|lines| drop(lines.remove(4)), Some(5)),
        (
            |lines| lines[4] = lines[4].replace("chain", "train"),
            Some(4),
        ),
        (|lines| lines.truncate(8), Some(8)),
        (|_| {}, None),
    ];
    for (number, (change, broken_from)) in changes.into_iter().enumerate() {
        let fixture = ChainFixture::with_entries(10).await;
        let content = fs::read_to_string(fixture.path()).unwrap();
        let mut lines: Vec<String> = content.lines().map(|line| line.to_owned() + "\n").collect();
        change(&mut lines);
        fs::write(fixture.path(), lines.concat()).unwrap();
        let tape = |name: &str| Tape::new(Arc::new(fixture.store()), TapeName::new(name).unwrap());
        let source = tape("chain__tape");
        let entries = source.entries(EntryRange::ALL).await.unwrap();
        for count in [3, entries.len()] {
            let copy = tape(&format!("chain__copy{count}"));
            let info = SessionInfo::new("copy");
            let copied = entries[..count].to_vec();
            source.copy_to(&copy, copied, &info).await.unwrap();
            // A copy of the copy, too.
            let again = tape(&format!("chain__again{count}"));
            let all = copy.entries(EntryRange::ALL).await.unwrap();
            copy.copy_to(&again, all, &info).await.unwrap();
            for copy in [&copy, &again] {
                let report = fixture.store().verify_chain(copy.name(), None).await;
                let problem = report.unwrap().problem;
                let is_broken = broken_from.is_some_and(|first| count >= first);
                assert_eq!(
                    problem.is_some(),
                    is_broken,
                    "{number}: {count}: {problem:?}"
                );
                assert!(
                    problem.is_none_or(|problem| matches!(problem, ChainProblem::Source { .. }))
                );
            }
        }
    }
}

/// Without its lock record, a tape is not proven. This stays so in an export and in copies of any length, also if their
/// chain starts later.
#[tokio::test]
async fn a_copy_and_an_export_of_an_unproven_tape_are_not_proven() {
    for has_later_entry in [false, true] {
        let fixture = ChainFixture::with_entries(10).await;
        let content = fs::read(fixture.path()).unwrap();
        fs::write(fixture.path(), &content[..line_ranges(&content)[9].0]).unwrap();
        fs::remove_dir_all(fixture.root.path().join(".bub/locks")).unwrap();
        if has_later_entry {
            // Its report is not part of the copies.
            fixture.append(["later".to_owned()]).await;
        }
        let lines = export(&fixture).await;
        let report = verify_lines(&lines);
        assert_eq!((report.problem, report.is_complete), (None, true));
        assert!(report.unproven.is_some(), "{has_later_entry}");
        let plain = FileStore::new(fixture.root.path(), Durability::Os);
        for (is_chained, store) in [(true, fixture.store()), (false, plain)] {
            let tape =
                |name: String| Tape::new(Arc::new(store.clone()), TapeName::new(name).unwrap());
            let source = tape("chain__tape".to_owned());
            let entries = source.entries(EntryRange::ALL).await.unwrap();
            for count in [3, 9] {
                let copy = tape(format!("chain__{is_chained}{count}"));
                let info = SessionInfo::new("copy");
                let copied = entries[..count].to_vec();
                source.copy_to(&copy, copied, &info).await.unwrap();
                let later = Tape::new(Arc::new(fixture.store()), copy.name().clone());
                later.append(Entry::message("user", "later")).await.unwrap();
                let report = fixture
                    .store()
                    .verify_chain(copy.name(), None)
                    .await
                    .unwrap();
                assert_eq!((report.problem, report.is_complete), (None, true));
                assert!(
                    report.unproven.is_some_and(|entry| entry.is_copied),
                    "{is_chained} {count}"
                );
            }
        }
    }
}

/// A line without its hash.
fn stripped(line: &str) -> String {
    match line.split_once(", \"chain\": \"") {
        Some((content, _)) => content.to_owned() + "}\n",
        None => line.to_owned(),
    }
}

/// The lock record still has the last hash. So a tape without hashes is broken, and copies and exports of any length that
/// contain entries without their hashes are, too, with or without a new chain.
#[tokio::test]
async fn copies_and_exports_of_a_tape_whose_hashes_were_removed_are_broken() {
    for first_stripped in [0, 6] {
        let fixture = ChainFixture::with_entries(10).await;
        let content = fs::read_to_string(fixture.path()).unwrap();
        let lines = content.split_inclusive('\n').enumerate();
        let lines = lines.map(|(index, line)| {
            if index >= first_stripped {
                stripped(line)
            } else {
                line.to_owned()
            }
        });
        fs::write(fixture.path(), lines.collect::<String>()).unwrap();
        assert_ne!(fixture.verify().await.problem, None);
        let exported = export(&fixture).await;
        let report = verify_lines(&exported);
        assert_eq!(report.chained, first_stripped as u64);
        assert!(
            matches!(report.problem, Some(ChainProblem::Source { .. })),
            "{report:?}"
        );
        let plain = FileStore::new(fixture.root.path(), Durability::Os);
        for (is_chained, store) in [(true, fixture.store()), (false, plain)] {
            let tape =
                |name: String| Tape::new(Arc::new(store.clone()), TapeName::new(name).unwrap());
            let source = tape("chain__tape".to_owned());
            let entries = source.entries(EntryRange::ALL).await.unwrap();
            for count in [3, 7, 10] {
                let copy = tape(format!("chain__{is_chained}{count}"));
                let copied = entries[..count].to_vec();
                let info = SessionInfo::new("copy");
                source.copy_to(&copy, copied, &info).await.unwrap();
                let report = store.verify_chain(copy.name(), None).await.unwrap();
                assert_eq!(
                    report.problem.is_some(),
                    count > first_stripped,
                    "{first_stripped} {is_chained} {count}: {report:?}"
                );
                let problem = store.chain_problem(copy.name()).await.unwrap();
                assert_eq!(problem, report.problem);
            }
        }
    }
}

/// The export of a broken tape is broken, also if its lines alone are a valid chain.
#[tokio::test]
async fn an_export_of_a_broken_tape_is_broken() {
    let fixture = ChainFixture::with_entries(20).await;
    let content = fs::read(fixture.path()).unwrap();
    fs::write(fixture.path(), &content[..line_ranges(&content)[15].0]).unwrap();
    let lines = export(&fixture).await;
    let problem = verify_lines(&lines).problem;
    assert!(
        matches!(&problem, Some(ChainProblem::Source { line: 16, problem, .. }) if problem.contains("after line 15")),
        "{problem:?}"
    );
}

#[tokio::test]
async fn a_chain_can_start_and_pause_at_any_entry() {
    let fixture = ChainFixture::new();
    let plain = || {
        let store = FileStore::new(fixture.root.path(), Durability::Os);
        Tape::new(Arc::new(store), fixture.name.clone())
    };
    for number in 0..3 {
        plain()
            .append(Entry::message("user", format!("plain {number}")))
            .await
            .unwrap();
    }
    assert_eq!(fixture.verify().await.chained, 0);
    fixture.append(["chained".to_owned()]).await;
    plain()
        .append(Entry::message("user", "plain again"))
        .await
        .unwrap();
    fixture.append(["chained again".to_owned()]).await;
    let report = fixture.verify().await;
    assert_eq!((report.before, report.chained, report.unchained), (3, 2, 1));
    assert_eq!(report.problem, None);
}

#[tokio::test]
async fn the_chain_of_a_copied_entry_is_not_copied() {
    let fixture = ChainFixture::with_entries(3).await;
    let tape = Tape::new(Arc::new(fixture.store()), fixture.name.clone());
    let entries = tape.entries(EntryRange::ALL).await.unwrap();
    let copy = TapeName::new("chain__copy").unwrap();
    fixture.store().append(&copy, entries).await.unwrap();
    let report = fixture.store().verify_chain(&copy, None).await.unwrap();
    assert_eq!((report.chained, report.problem), (3, None));
}

#[tokio::test]
async fn a_reset_and_a_torn_tail_keep_the_chain_valid() {
    let fixture = ChainFixture::with_entries(5).await;
    let request = ResetRequest::with_entries(vec![Entry::message("user", "new")]);
    fixture.store().reset(&fixture.name, request).await.unwrap();
    fixture.append(["more".to_owned()]).await;
    let report = fixture.verify().await;
    assert_eq!((report.chained, report.problem), (2, None));
    let mut torn = fs::read(fixture.path()).unwrap();
    torn.extend_from_slice(b"{\"id\": 3, \"kind\": \"mess");
    fs::write(fixture.path(), torn).unwrap();
    assert_eq!(fixture.verify().await.problem, None);
    fixture.append(["after the torn line".to_owned()]).await;
    let report = fixture.verify().await;
    // The repair is recorded as an entry.
    assert_eq!(
        (report.chained, report.unchained, report.problem),
        (4, 0, None)
    );
}

#[tokio::test]
async fn blank_lines_that_were_inserted_in_an_export_are_noticed() {
    let fixture = ChainFixture::with_entries(5).await;
    let lines = export(&fixture).await;
    let report = |lines: &[String]| ChainReport::of_lines(lines.concat().as_bytes(), None).unwrap();
    assert!(report(&lines).is_complete);
    for position in 0..=lines.len() {
        let mut altered = lines.clone();
        altered.insert(position, "  \n".to_owned());
        let report = report(&altered);
        assert_eq!(
            (report.invalid, report.is_complete),
            (1, false),
            "{position}"
        );
    }
}
