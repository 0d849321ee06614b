//! `bub tape verify`: checks the hash chains of tapes and exports.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use bub_tape::{ChainReport, Entry, EntryId, Query, Result, TapeError, TapeName, UnprovenEntry};
use futures_util::TryStreamExt as _;

use super::{check::tape_label, text, workspace_tapes::HomeTapes};
use crate::cli::progress::ProgressBar;

/// The sidecar with large tool output, and the event on the tape that names the output in it.
const SPILL_SIDECAR: &str = "spill";
const SPILL_EVENT: &str = "spill.write";

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
        let report = report.map_err(|error| TapeError::InvalidInput(error.to_string()))?;
        is_broken |= write_report(&mut lines, &path.display().to_string(), &report, head);
    } else {
        let names = files.resolve_names(&args.tapes).await?;
        let missing = files.store.missing_chained_tapes().await?;
        let progress = ProgressBar::new("verifying", names.len(), &files.tapes.settings);
        for (index, name) in names.iter().enumerate() {
            let label = tape_label(files, name).await;
            progress.advance(&label);
            // The other names are sidecars of the tape, which have their own chains.
            let head = head.filter(|_| index == 0);
            let report = files.store.verify_chain(name, head).await?;
            is_broken |= write_report(&mut lines, &label, &report, head);
            let sidecar = name.sidecar(SPILL_SIDECAR).ok();
            let is_known =
                |sidecar: &TapeName| names.contains(sidecar) || missing.contains(sidecar);
            if report.chained > 0
                && let Some(sidecar) = sidecar.filter(|sidecar| !is_known(sidecar))
                && let Some(entry) = find_spill(files, name).await?
            {
                let id = entry.id;
                let _ = writeln!(lines, "{sidecar}: missing");
                let _ = writeln!(
                    lines,
                    "  entry {id} of {label} refers to output in it, and its file was removed"
                );
                is_broken = true;
            }
        }
        for name in missing {
            let tape = name.as_sidecar().map(|(tape, _)| tape);
            let is_of_verified = |tape| names.iter().any(|name| name.as_str() == tape);
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

/// Returns the first entry of a tape that refers to output in its sidecar.
async fn find_spill(files: &HomeTapes, name: &TapeName) -> Result<Option<Entry>> {
    let tape = files.tapes.open_tape(name);
    let mut entries = tape.query(Query::new());
    while let Some(entry) = entries.try_next().await? {
        let status = entry.data().and_then(|data| data.get("status")?.as_str());
        if entry.name() == Some(SPILL_EVENT) && status == Some("ok") {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Adds the report of one tape. Returns whether the tape is not proven to be complete and unaltered.
fn write_report(lines: &mut String, label: &str, report: &ChainReport, head: Option<&str>) -> bool {
    let (status, problem) = match (&report.problem, head) {
        (Some(problem), _) => ("broken", Some(problem.to_string())),
        (None, Some(head)) if report.proven.is_none() => {
            let text = format!("no chained entry has the hash {head}");
            ("broken", Some(text))
        }
        (None, _) if report.chained == 0 => ("not chained", None),
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
        (None, Some(_)) if report.is_start_uncovered && report.before > 0 => {
            ("not proven", Some(START_TEXT.to_owned()))
        }
        (None, Some(_))
            if !report.is_complete && report.proven.is_some_and(|proven| proven.following > 0) =>
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
    if let (true, Some(head)) = (report.problem.is_none(), &report.head) {
        let _ = writeln!(lines, "  head: {head}");
    }
    problem.is_some()
}
