//! `bub tape verify`: checks the hash chains of tapes and exports.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use bub_tape::{ChainReport, Result};

use super::{check::tape_label, text, workspace_tapes::HomeTapes};
use crate::cli::progress::ProgressBar;

/// Prove that tapes were not altered
///
/// Checks the hash chain that entries get if `tape.integrity` is `chain`: nothing was altered, removed or reordered since.
/// Exits with 1 if a chain is broken, and names the first bad entry.
#[derive(clap::Args)]
pub(super) struct VerifyArgs {
    /// Session id, tape name, or a unique prefix [default: all tapes]
    #[arg(value_name = "TAPE", num_args = 0.., conflicts_with = "file")]
    tapes: Vec<String>,
    /// Check a file, such as an export
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Hash that the last chained entry must have, as an earlier `verify` printed it
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
}

pub(super) async fn run(files: &HomeTapes, args: VerifyArgs) -> Result<ExitCode> {
    let mut lines = String::new();
    let mut is_broken = false;
    if let Some(path) = &args.file {
        let report = ChainReport::of_file(path)?;
        is_broken |= write_report(&mut lines, &path.display().to_string(), &report, &args);
    } else {
        let names = files.resolve_names(&args.tapes).await?;
        let progress = ProgressBar::new("verifying", names.len(), &files.tapes.settings);
        for name in &names {
            let label = tape_label(files, name).await;
            progress.advance(&label);
            let report = files.store.verify_chain(name).await?;
            is_broken |= write_report(&mut lines, &label, &report, &args);
        }
    }
    files.tapes.print(if lines.is_empty() {
        "(no tapes)\n"
    } else {
        &lines
    })?;
    Ok(ExitCode::from(u8::from(is_broken)))
}

/// Adds the report of one tape. Returns whether its chain is broken.
fn write_report(lines: &mut String, label: &str, report: &ChainReport, args: &VerifyArgs) -> bool {
    let other_head = args
        .head
        .as_ref()
        .filter(|head| Some(*head) != report.head.as_ref());
    let problem = match (&report.problem, other_head) {
        (Some(problem), _) => Some(problem.to_string()),
        (None, Some(head)) => Some(format!(
            "the last chained entry does not have the hash {head}"
        )),
        (None, None) => None,
    };
    let chained = text::format_count(report.chained, "chained entry", "chained entries");
    let status = match &problem {
        Some(_) => "broken",
        None if report.chained == 0 => "not chained",
        None => "ok",
    };
    let _ = write!(lines, "{label}: {status} ({chained}");
    for (count, what) in [
        (report.before, "before the chain"),
        (report.unchained, "unchained"),
    ] {
        if count > 0 {
            let _ = write!(lines, ", {count} {what}");
        }
    }
    let _ = writeln!(lines, ")");
    if let Some(problem) = &problem {
        let _ = writeln!(lines, "  {problem}");
    } else if let Some(head) = &report.head {
        let _ = writeln!(lines, "  head: {head}");
    }
    problem.is_some()
}
