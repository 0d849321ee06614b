//! `bub tape reindex`: making the derived index again.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::Result;
use clap::{ArgMatches, Command};

use super::{check, out::Out, progress::Progress, tapes::Files, text};

pub(super) fn command() -> Command {
    Command::new("reindex")
        .about("Delete the index of tapes and make it again")
        .long_about(
            "Delete the index of tapes and make it again from the tapes themselves. Nothing depends on this having been \
             done: an index that is missing or wrong is noticed when a tape is opened.",
        )
        .arg(check::tapes_arg())
}

pub(super) async fn run(files: &Files, matches: &ArgMatches) -> Result<ExitCode> {
    let names = check::named(files, matches).await?;
    let mut progress = Progress::new("indexing", names.len());
    let mut report = String::new();
    for name in &names {
        progress.next(name.as_str());
        let summary = files.store.reindex(name).await?;
        let entries = text::count(summary.entries, "entry", "entries");
        let anchors = text::count(summary.anchors, "anchor", "anchors");
        let _ = writeln!(report, "{}: {entries}, {anchors}", check::label(files, name).await);
    }
    drop(progress);
    let mut out = Out::plain(&files.tapes.settings);
    out.write(if names.is_empty() { "(no tapes)\n" } else { &report })?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
