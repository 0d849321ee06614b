//! `bub tape reindex`: rebuilds the index from the tapes.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::Result;
use clap::{ArgMatches, Command};

use super::{
    check, progress::ProgressLine, text, workspace_tapes::HomeTapes, writer::ResultWriter,
};

pub(super) fn command() -> Command {
    Command::new("reindex")
        .about("Rebuild the index")
        .long_about(
            "Rebuild the index from the tapes. This is rarely needed: bub detects a missing or wrong index when it opens a \
             tape.",
        )
        .arg(check::tapes_arg())
}

pub(super) async fn run(files: &HomeTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let names = check::selected_tapes(files, matches).await?;
    let mut progress = ProgressLine::new("indexing", names.len());
    let (mut report, mut failed) = (String::new(), false);
    for name in &names {
        let label = check::tape_label(files, name).await;
        progress.advance(&label);
        match files.store.reindex(name).await {
            Ok(summary) => {
                let entries = text::format_count(summary.entries, "entry", "entries");
                let anchors = text::format_count(summary.anchors, "anchor", "anchors");
                let _ = writeln!(report, "{label}: {entries}, {anchors}");
            }
            Err(error) => {
                failed = true;
                let _ = writeln!(
                    report,
                    "{label}: not indexed: {}",
                    text::sanitize_line(&error.to_string())
                );
            }
        }
    }
    drop(progress);
    let mut out = ResultWriter::for_stdout(&files.tapes.settings);
    out.write(if names.is_empty() {
        "(no tapes)\n"
    } else {
        &report
    })?;
    out.finish()?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
