//! `bub tape prune`: deletes old archives of tapes, and blobs (files with media) that no tape needs.

use std::{process::ExitCode, time::Duration};

use bub::prompt;
use bub_tape::{Result, TapeError, UnusedFile, UnusedFileKind};

use super::{
    text::{self, format_bytes, format_count},
    workspace_tapes::HomeTapes,
};
use crate::cli::{
    dates::{SECONDS_PER_HOUR, parse_age},
    progress::ProgressBar,
};

/// Delete old archives and unused media
///
/// Archives are the files `*.bak`. Media is unused if neither a tape nor a newer archive refers to it. Lists the files
/// and asks for confirmation. Never deletes tapes.
#[derive(clap::Args)]
pub(super) struct PruneArgs {
    /// Minimum age, such as 12h, 30d or 4w
    #[arg(long, value_name = "AGE", value_parser = parse_age, default_value = "30d")]
    older_than: Duration,
    /// List the files without deleting them
    #[arg(long)]
    dry_run: bool,
    /// Do not prompt
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(files: &HomeTapes, args: PruneArgs) -> Result<ExitCode> {
    let leftovers = files.store.unused_files(args.older_than).await?;
    files.tapes.print(&describe_files(files, &leftovers))?;
    if leftovers.is_empty() || args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !confirm_deletion(&leftovers).await? {
        notice!("nothing was deleted");
        return Ok(ExitCode::SUCCESS);
    }
    delete_files(files, &leftovers).await
}

async fn delete_files(files: &HomeTapes, leftovers: &[UnusedFile]) -> Result<ExitCode> {
    let progress = ProgressBar::new("deleting", leftovers.len(), &files.tapes.settings);
    let (mut removed, mut bytes, mut failures) = (0, 0, Vec::new());
    for leftover in leftovers {
        progress.advance(&leftover.path.display().to_string());
        match files.store.remove_unused_file(leftover).await {
            Ok(true) => (removed, bytes) = (removed + 1, bytes + leftover.bytes),
            Ok(false) => {}
            Err(error) => failures.push(error.to_string()),
        }
    }
    drop(progress);
    for problem in &failures {
        notice!("not deleted: {}", text::sanitize_line(problem));
    }
    let (count, size) = (format_count(removed, "file", "files"), format_bytes(bytes));
    notice!("deleted {count} ({size})");
    Ok(ExitCode::from(u8::from(!failures.is_empty())))
}

fn describe_files(files: &HomeTapes, leftovers: &[UnusedFile]) -> String {
    if leftovers.is_empty() {
        return "(nothing to delete)\n".to_owned();
    }
    let row = |leftover: &UnusedFile| {
        let kind = match leftover.kind {
            UnusedFileKind::Archive => "archive",
            UnusedFileKind::Blob => "blob",
        };
        let days = leftover.since.elapsed().unwrap_or_default().as_secs() / (24 * SECONDS_PER_HOUR);
        let path = leftover.path.strip_prefix(&files.directory);
        let path = path.unwrap_or(&leftover.path).to_string_lossy();
        [
            kind.to_owned(),
            format_count(days, "day old", "days old"),
            format_bytes(leftover.bytes),
            text::sanitize_line(&path),
        ]
    };
    let rows: Vec<_> = leftovers.iter().map(row).collect();
    let (total, directory) = (total_text(leftovers), files.directory.display());
    format!("{}{total} in {directory}\n", text::format_columns(&rows))
}

fn total_text(leftovers: &[UnusedFile]) -> String {
    let bytes = leftovers.iter().map(|leftover| leftover.bytes).sum();
    let count = format_count(leftovers.len(), "file", "files");
    format!("{count}, {}", format_bytes(bytes))
}

/// Asks for confirmation at the terminal.
async fn confirm_deletion(leftovers: &[UnusedFile]) -> Result<bool> {
    if !prompt::has_terminal() {
        let text = "cannot prompt: stdin is not a terminal; pass `--yes` to delete the files, or `--dry-run` to list them";
        return Err(TapeError::InvalidInput(text.to_owned()));
    }
    let question = format!("Delete {} permanently?", total_text(leftovers));
    // Ctrl-C and Ctrl-D mean no.
    Ok(prompt::confirm(&question, false).await.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_a_unit() {
        assert_eq!(
            parse_age("36h"),
            Ok(Duration::from_secs(36 * SECONDS_PER_HOUR))
        );
        assert_eq!(
            parse_age("2w"),
            Ok(Duration::from_secs(14 * 24 * SECONDS_PER_HOUR))
        );
        for wrong in [
            "",
            "30",
            "d",
            "-1d",
            "1.5d",
            "99999999999999999999d",
            "18446744073709551615w",
            "3€",
        ] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }
}
