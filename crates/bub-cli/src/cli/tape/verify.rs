//! `bub tape verify`: checks the hash chains of tapes and exports.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    path::PathBuf,
    process::ExitCode,
};

use bub_tape::{ChainReport, EntryId, Query, Result, TapeError, TapeName, UnprovenEntry};
use futures_util::TryStreamExt as _;
use serde_json::Value;

use super::{
    check::tape_label,
    text,
    workspace_tapes::{HomeTapes, NamedTapes},
};
use crate::cli::progress::ProgressBar;

/// The sidecar with large tool output, the event on the tape that names the output in it, the event in the sidecar that
/// ends the output, and the event on the tape that the sidecar was cleared.
const SPILL_SIDECAR: &str = "spill";
const SPILL_EVENT: &str = "spill.write";
const MANIFEST_EVENT: &str = "spill.manifest";
const CLEARED_EVENT: &str = "sidecar.reset";

/// What is said about the head of a tape that is not proven.
const UNPROVEN_HEAD_TEXT: &str = "it does not prove that nothing is missing before it";

/// What is said about a tape whose end is not proven.
const END_TEXT: &str = "no entry was altered, but entries may be missing at the end: the lock record of the tape, or the \
                        end mark of the export, is missing; to prove the end, pass `--head HASH`";

/// What is said about a tape whose end is not proven, if the given head is not that of its last entry.
const AFTER_HEAD_TEXT: &str = "proven up to that entry, but the end is not proven: entries may be missing at the end, because \
                               the lock record of the tape, or the end mark of the export, is missing";

/// What is said about a head that does not prove the entries before the chain.
const START_TEXT: &str =
    "an older version of bub started the chain, so the head does not prove the entries before it";

/// Prove that tapes were not altered
///
/// Checks the hash chain that entries get if `tape.integrity` is `chain`: nothing was altered, removed or reordered since.
/// Exits with 1 if a chain is broken, and names the first bad entry. Also exits with 1 if a tape is missing, or if entries
/// may be missing at the end.
#[derive(clap::Args)]
pub(super) struct VerifyArgs {
    /// Session id, tape name, or a unique prefix [default: all tapes]
    #[arg(value_name = "TAPE", num_args = 0.., conflicts_with = "file")]
    tapes: Vec<String>,
    /// Check a file, such as an export
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Head that an earlier `verify` printed; an entry must have it, which proves all entries up to that one
    #[arg(long, value_name = "HASH", value_parser = parse_head)]
    head: Option<String>,
}

fn parse_head(text: &str) -> std::result::Result<String, &'static str> {
    let head = text.trim().to_ascii_lowercase();
    let is_valid = head.len() == 64 && head.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid
        .then_some(head)
        .ok_or("expected 64 hexadecimal digits")
}

pub(super) async fn run(files: &HomeTapes, args: VerifyArgs) -> Result<ExitCode> {
    let head = args.head.as_deref();
    if head.is_some() && args.file.is_none() && args.tapes.len() != 1 {
        let text = "`--head` belongs to one tape; name the tape, or pass `--file`";
        return Err(TapeError::InvalidInput(text.to_owned()));
    }
    let mut lines = String::new();
    let mut is_broken = false;
    if let Some(path) = &args.file {
        let report = ChainReport::of_file(path, head);
        let report = VerifiedTape {
            chain: report.map_err(|error| TapeError::InvalidInput(error.to_string()))?,
            missing_output: None,
        };
        is_broken |= report.write(&mut lines, &path.display().to_string(), head);
    } else {
        let NamedTapes {
            names,
            missing: removed,
        } = files.look_up_names(&args.tapes).await?;
        let missing = files.store.missing_tapes().await?;
        let missing = missing.into_iter().filter(|missing| missing.had_chain);
        let missing: Vec<TapeName> = missing.map(|missing| missing.name).collect();
        let progress = ProgressBar::new("verifying", names.len(), &files.tapes.settings);
        for (index, name) in names.iter().enumerate() {
            let label = tape_label(files, name).await;
            progress.advance(&label);
            // The other names are sidecars of the tape, which have their own chains.
            let head = head.filter(|_| index == 0);
            let mut report = VerifiedTape {
                chain: files.store.verify_chain(name, head).await?,
                missing_output: None,
            };
            let sidecar = name.sidecar(SPILL_SIDECAR).ok();
            let is_known =
                |sidecar: &TapeName| names.contains(sidecar) || missing.contains(sidecar);
            if let Some((tape, SPILL_SIDECAR)) = name.as_sidecar() {
                report.missing_output =
                    find_missing_output(files, &TapeName::new(tape)?, name).await?;
            }
            is_broken |= report.write(&mut lines, &label, head);
            if let Some(sidecar) = sidecar.filter(|sidecar| !is_known(sidecar))
                && let Some(id) = find_missing_output(files, name, &sidecar).await?
            {
                let _ = writeln!(lines, "{sidecar}: missing");
                let _ = writeln!(
                    lines,
                    "  entry {id} of {label} refers to output in it, and its file was removed"
                );
                is_broken = true;
            }
        }
        for (requested, _) in &removed {
            let _ = writeln!(lines, "{}: missing", text::sanitize_line(requested));
            lines.push_str("  the tape had entries, and its file was removed\n");
            is_broken = true;
        }
        for name in missing {
            let tape = name.as_sidecar().map(|(tape, _)| tape);
            let removed = removed.iter().map(|(_, name)| name);
            let mut verified = names.iter().chain(removed);
            let is_of_verified = |tape| verified.any(|name| name.as_str() == tape);
            if args.tapes.is_empty() || tape.is_some_and(is_of_verified) {
                let _ = writeln!(lines, "{name}: missing");
                lines.push_str("  the tape had chained entries, and its file was removed\n");
                is_broken = true;
            }
        }
    }
    files.tapes.print(if lines.is_empty() {
        "(no tapes)\n"
    } else {
        &lines
    })?;
    Ok(ExitCode::from(u8::from(is_broken)))
}

/// Returns the first chained entry of a tape that refers to output that its sidecar does not have. The chain of the tape
/// proves this entry, so it also proves that the sidecar had the output.
async fn find_missing_output(
    files: &HomeTapes,
    name: &TapeName,
    sidecar: &TapeName,
) -> Result<Option<EntryId>> {
    let mut referenced: Vec<(EntryId, String)> = Vec::new();
    let tape = files.tapes.open_tape(name);
    let mut entries = tape.query(Query::new());
    while let Some(entry) = entries.try_next().await? {
        let field = |key: &str| entry.data().and_then(|data| data.get(key)?.as_str());
        match (entry.name(), field("status")) {
            (Some(SPILL_EVENT), Some("ok")) if entry.extra.contains_key("chain") => {
                let handle = field("handle").map(str::to_owned);
                referenced.extend(handle.map(|handle| (entry.id, handle)));
            }
            (Some(CLEARED_EVENT), Some("ok")) if field("sidecar") == Some(SPILL_SIDECAR) => {
                referenced.clear();
            }
            _ => {}
        }
    }
    if referenced.is_empty() {
        return Ok(None);
    }
    let stored = stored_outputs(files, sidecar).await?;
    let mut referenced = referenced.into_iter();
    let missing = referenced.find(|(_, handle)| !stored.contains(handle));
    Ok(missing.map(|(id, _)| id))
}

/// Returns the handles of the outputs that a sidecar has completely.
async fn stored_outputs(files: &HomeTapes, sidecar: &TapeName) -> Result<HashSet<String>> {
    let (mut chunks, mut stored) = (HashMap::<String, HashSet<u64>>::new(), HashSet::new());
    let tape = files.tapes.open_tape(sidecar);
    let mut entries = tape.query(Query::new());
    while let Some(entry) = entries.try_next().await? {
        let handle = entry.meta.get("spill_handle").and_then(Value::as_str);
        let Some(handle) = handle.map(str::to_owned) else {
            continue;
        };
        let number = |data: Option<&Value>| data.and_then(Value::as_u64);
        if entry.name() == Some(MANIFEST_EVENT) {
            let count = number(entry.data().and_then(|data| data.get("chunks")));
            let found = chunks.get(&handle).map_or(0, |chunks| chunks.len() as u64);
            if count.is_some_and(|count| count <= found) {
                stored.insert(handle);
            }
        } else if let Some(chunk) = number(entry.meta.get("spill_chunk")) {
            chunks.entry(handle).or_default().insert(chunk);
        }
    }
    Ok(stored)
}

/// What is known about one tape or file.
struct VerifiedTape {
    chain: ChainReport,
    /// The first entry of another tape that refers to output that this sidecar should have.
    missing_output: Option<EntryId>,
}

impl VerifiedTape {
    /// Adds the report. Returns whether the tape is not proven to be complete and unaltered.
    fn write(&self, lines: &mut String, label: &str, head: Option<&str>) -> bool {
        let report = &self.chain;
        let (status, problem) = match (&report.problem, head) {
            (Some(problem), _) => ("broken", Some(problem.to_string())),
            (None, Some(head)) if report.proven.is_none() => {
                let text = format!("no chained entry has the hash {head}");
                ("broken", Some(text))
            }
            (None, _) if let Some(id) = self.missing_output => {
                let text =
                    format!("entry {id} of its tape refers to output that was removed from it");
                ("broken", Some(text))
            }
            (None, _) if let Some(entry) = report.unproven => {
                let UnprovenEntry { id, line, .. } = entry;
                let text = if entry.is_copied {
                    format!(
                        "no entry was altered since, but entry {id} (line {line}) and the entries before it were copied from a \
                     tape that was not proven: entries may be missing"
                    )
                } else {
                    format!(
                        "no entry was altered, but entries may be missing before entry {id} (line {line}): the lock record of the \
                 tape was missing when it was written; to prove them, pass a head of the time before it with `--head HASH`"
                    )
                };
                ("not proven", Some(text))
            }
            (None, _) if report.chained == 0 => ("not chained", None),
            (None, Some(_)) if report.is_start_uncovered && report.before > 0 => {
                ("not proven", Some(START_TEXT.to_owned()))
            }
            (None, Some(_))
                if !report.is_complete
                    && report.proven.is_some_and(|proven| proven.following > 0) =>
            {
                ("not proven", Some(AFTER_HEAD_TEXT.to_owned()))
            }
            (None, None) if !report.is_complete => ("not proven", Some(END_TEXT.to_owned())),
            (None, _) => ("ok", None),
        };
        let chained = text::format_count(report.chained, "chained entry", "chained entries");
        let _ = write!(lines, "{label}: {status} ({chained}");
        for (count, what) in [
            (report.before, "before the chain"),
            (report.unchained, "unchained"),
            (report.invalid, "invalid"),
        ] {
            if count > 0 {
                let _ = write!(lines, ", {count} {what}");
            }
        }
        let _ = writeln!(lines, ")");
        let place = |id: Option<EntryId>, line: u64| match id {
            Some(id) => format!("entry {id} (line {line})"),
            None => format!("line {line}"),
        };
        if let Some(proven) = &report.proven {
            let count = text::format_count(proven.following, "chained entry", "chained entries");
            let place = place(proven.id, proven.line);
            let _ = writeln!(
                lines,
                "  the given head is that of {place}; {count} after it"
            );
        }
        if report.is_start_uncovered {
            lines.push_str("  entries before the chain: not covered\n");
        }
        if let Some(problem) = &problem {
            let _ = writeln!(lines, "  {}", text::sanitize_line(problem));
        }
        if let (Some(head), "ok" | "not proven") = (&report.head, status) {
            let note = problem.as_ref().map(|_| format!(" ({UNPROVEN_HEAD_TEXT})"));
            let _ = writeln!(lines, "  head: {head}{}", note.unwrap_or_default());
        }
        problem.is_some()
    }
}
