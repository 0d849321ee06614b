//! `bub tape check` and `bub tape reindex`: check tapes for damage, repair them, and rebuild their index.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::{Damage, Result, TapeError, TapeName, TapeStore as _, VerifyReport};

use super::{text, workspace_tapes::HomeTapes};
use crate::cli::progress::ProgressBar;

/// Maximum number of problems listed per tape. The rest is only counted.
const MAX_SHOWN_DAMAGE: usize = 20;
const REPAIR_FIX: &str = "run `bub tape check --repair`";

/// Check tapes for damage
///
/// Damage is a torn tail, an invalid line, ids out of order, a tool call without a result, a missing or damaged blob, or
/// a wrong index. Exits with 1 if damage remains.
#[derive(clap::Args)]
pub(super) struct CheckArgs {
    /// Session id, tape name, or a unique prefix [default: all tapes]
    #[arg(value_name = "TAPE", num_args = 0..)]
    tapes: Vec<String>,
    /// Repair damage; removed data is kept in a separate file
    #[arg(long)]
    repair: bool,
}

/// Rebuild the index
///
/// Reads the tapes. This is rarely needed: bub detects a missing or wrong index when it opens a tape.
#[derive(clap::Args)]
pub(super) struct ReindexArgs {
    /// Session id, tape name, or a unique prefix [default: all tapes]
    #[arg(value_name = "TAPE", num_args = 0..)]
    tapes: Vec<String>,
}

pub(super) async fn check(files: &HomeTapes, args: CheckArgs) -> Result<ExitCode> {
    let names = files.resolve_names(&args.tapes).await?;
    let progress = ProgressBar::new("checking", names.len(), &files.tapes.settings);
    let (mut report, mut damaged, mut unchecked) = (String::new(), 0, 0);
    for name in &names {
        let label = tape_label(files, name).await;
        progress.advance(&label);
        match check_tape(files, name, &label, args.repair, &mut report).await {
            Ok(remains) => damaged += usize::from(remains),
            Err(error) => {
                unchecked += 1;
                let error = text::sanitize_line(&error.to_string());
                let _ = writeln!(report, "{label}: not checked: {error}");
            }
        }
    }
    drop(progress);
    print_report(files, &report)?;
    if damaged > 0 {
        let hint = if args.repair {
            "see the reasons above; missing data can only be restored from a backup"
        } else {
            REPAIR_FIX
        };
        let tapes = text::format_count(damaged, "tape is", "tapes are");
        notice!("{tapes} damaged; {hint}");
    }
    if unchecked > 0 {
        let tapes = text::format_count(unchecked, "tape", "tapes");
        notice!("{tapes} could not be checked");
    }
    Ok(ExitCode::from(u8::from(damaged + unchecked > 0)))
}

pub(super) async fn reindex(files: &HomeTapes, args: ReindexArgs) -> Result<ExitCode> {
    let names = files.resolve_names(&args.tapes).await?;
    let progress = ProgressBar::new("indexing", names.len(), &files.tapes.settings);
    let (mut report, mut has_failed) = (String::new(), false);
    for name in &names {
        let label = tape_label(files, name).await;
        progress.advance(&label);
        let line = match files.store.reindex(name).await {
            Ok(summary) => {
                let entries = text::format_count(summary.entries, "entry", "entries");
                let anchors = text::format_count(summary.anchors, "anchor", "anchors");
                format!("{entries}, {anchors}")
            }
            Err(error) => {
                has_failed = true;
                format!("not indexed: {}", text::sanitize_line(&error.to_string()))
            }
        };
        let _ = writeln!(report, "{label}: {line}");
    }
    drop(progress);
    print_report(files, &report)?;
    Ok(ExitCode::from(u8::from(has_failed)))
}

/// Prints the lines about all processed tapes.
fn print_report(files: &HomeTapes, report: &str) -> Result<ExitCode> {
    let is_empty = report.is_empty();
    files
        .tapes
        .print(if is_empty { "(no tapes)\n" } else { report })
}

/// Checks one tape, repairs it if `repair` is true, and appends the result to `report`. Returns whether damage remains.
async fn check_tape(
    files: &HomeTapes,
    name: &TapeName,
    label: &str,
    repair: bool,
    report: &mut String,
) -> Result<bool> {
    let verify_report = files.store.verify(name).await?;
    write_damage(report, label, &verify_report);
    if !repair || verify_report.damage.is_empty() {
        return Ok(!verify_report.damage.is_empty());
    }
    let repaired = match files.store.repair(name).await {
        Err(error @ TapeError::Busy { .. }) => {
            let error = text::sanitize_line(&error.to_string());
            let _ = writeln!(report, "  not repaired: {error}");
            return Ok(true);
        }
        repaired => repaired?,
    };
    for done in &repaired.done {
        let _ = writeln!(report, "  repaired: {done}");
    }
    for kept in &repaired.kept {
        let _ = writeln!(report, "  removed data is kept in: {}", kept.display());
    }
    let remaining = files.store.verify(name).await?;
    if !remaining.damage.is_empty() {
        write_damage(report, "  still", &remaining);
    }
    Ok(!remaining.damage.is_empty())
}

fn write_damage(report: &mut String, label: &str, verify_report: &VerifyReport) {
    let damage = &verify_report.damage;
    let entries = text::format_count(verify_report.entries, "entry", "entries");
    if damage.is_empty() {
        let _ = writeln!(report, "{label}: ok ({entries})");
        return;
    }
    let _ = writeln!(report, "{label}: damaged ({entries})");
    for damage in damage.iter().take(MAX_SHOWN_DAMAGE) {
        let _ = writeln!(report, "  {}", text::sanitize_line(&damage.to_string()));
    }
    if damage.len() > MAX_SHOWN_DAMAGE {
        let _ = writeln!(report, "  and {} more", damage.len() - MAX_SHOWN_DAMAGE);
    }
    if damage.iter().all(Damage::is_acceptable) {
        report.push_str("  (no data is lost: views skip or complete tool calls and results without a counterpart)\n");
    }
}

/// Returns the session id of a tape, or its name. For a sidecar, adds the name of the sidecar.
pub(super) async fn tape_label(files: &HomeTapes, name: &TapeName) -> String {
    let owner = name
        .as_sidecar()
        .and_then(|(owner, sidecar)| Some((TapeName::new(owner).ok()?, sidecar)));
    let (main, sidecar) = match &owner {
        Some((owner, sidecar)) => (owner, format!(" (sidecar {sidecar})")),
        None => (name, String::new()),
    };
    // A tape without a readable summary still has a name; the error is reported when the tape is processed.
    let summary = files.store.summary(main).await.unwrap_or_default();
    let session = summary.session.map(|session| session.session_id);
    text::sanitize_line(session.as_deref().unwrap_or(main.as_str())) + &sidecar
}
