//! `bub tape prune`: deletes archives and blobs that no tape needs.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bub_tape::{Result, TapeError, UnusedFile, UnusedFileKind};
use clap::{Arg, ArgMatches, Command};

use super::{
    flag_arg, progress::ProgressLine, text, workspace_tapes::HomeTapes, writer::ResultWriter,
};

const SECONDS_PER_HOUR: u64 = 3600;

pub(super) fn command() -> Command {
    Command::new("prune")
        .about("Delete old archives and unused media")
        .long_about(
            "Delete old archives (*.bak) and unused media. Media is unused if neither a tape nor a newer archive refers to \
             it. Lists the files and asks for confirmation. Never deletes tapes.",
        )
        .arg(
            Arg::new("older-than")
                .long("older-than")
                .value_name("AGE")
                .value_parser(parse_age)
                .default_value("30d")
                .help("Minimum age, such as 12h, 30d or 4w"),
        )
        .arg(flag_arg("dry-run", "List the files without deleting them"))
        .arg(flag_arg("yes", "Do not prompt"))
}

fn parse_age(text: &str) -> Result<Duration, String> {
    let hours = match text.char_indices().last() {
        Some((at, 'h')) => Some((at, 1)),
        Some((at, 'd')) => Some((at, 24)),
        Some((at, 'w')) => Some((at, 24 * 7)),
        _ => None,
    };
    let parsed = hours.and_then(|(at, hours)| {
        let number: u64 = text.get(..at)?.parse().ok()?;
        number.checked_mul(hours * SECONDS_PER_HOUR)
    });
    parsed
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a number followed by h, d or w, for example 30d".to_owned())
}

pub(super) async fn run(files: &HomeTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let older_than = matches
        .get_one::<Duration>("older-than")
        .copied()
        .unwrap_or_default();
    let leftovers = files.store.unused_files(older_than).await?;
    let mut out = ResultWriter::for_stdout(&files.tapes.settings);
    out.write(&describe_files(files, &leftovers))?;
    out.finish()?;
    if leftovers.is_empty() || matches.get_flag("dry-run") {
        return Ok(ExitCode::SUCCESS);
    }
    if !matches.get_flag("yes") && !confirm_deletion(&leftovers)? {
        super::print_note("nothing was deleted");
        return Ok(ExitCode::SUCCESS);
    }
    delete_files(files, &leftovers).await
}

async fn delete_files(files: &HomeTapes, leftovers: &[UnusedFile]) -> Result<ExitCode> {
    let mut progress = ProgressLine::delayed("deleting", leftovers.len());
    let (mut removed, mut bytes, mut failures) = (0, 0, Vec::new());
    for leftover in leftovers {
        progress.advance(&leftover.path.display().to_string());
        match files.store.remove_unused_file(leftover).await {
            Ok(true) => {
                removed += 1;
                bytes += leftover.bytes;
            }
            Ok(false) => {}
            Err(error) => failures.push(error.to_string()),
        }
    }
    drop(progress);
    for problem in &failures {
        super::print_note(&format!("not deleted: {}", text::sanitize_line(problem)));
    }
    super::print_note(&format!(
        "deleted {} ({})",
        text::format_count(removed, "file", "files"),
        text::format_bytes(bytes)
    ));
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn describe_files(files: &HomeTapes, leftovers: &[UnusedFile]) -> String {
    if leftovers.is_empty() {
        return "(nothing to delete)\n".to_owned();
    }
    let rows: Vec<_> = leftovers
        .iter()
        .map(|leftover| {
            let kind = match leftover.kind {
                UnusedFileKind::Archive => "archive",
                UnusedFileKind::Blob => "blob",
            };
            let path = leftover
                .path
                .strip_prefix(&files.directory)
                .unwrap_or(&leftover.path);
            [
                kind.to_owned(),
                age_text(leftover.since),
                text::format_bytes(leftover.bytes),
                text::sanitize_line(&path.to_string_lossy()),
            ]
        })
        .collect();
    let mut report = text::format_columns(&rows);
    let _ = writeln!(
        report,
        "{} in {}",
        total_text(leftovers),
        files.directory.display()
    );
    report
}

fn age_text(time: SystemTime) -> String {
    let age = time.elapsed().unwrap_or_default();
    text::format_count(
        age.as_secs() / (24 * SECONDS_PER_HOUR),
        "day old",
        "days old",
    )
}

fn total_text(leftovers: &[UnusedFile]) -> String {
    let bytes = leftovers.iter().map(|leftover| leftover.bytes).sum();
    format!(
        "{}, {}",
        text::format_count(leftovers.len() as u64, "file", "files"),
        text::format_bytes(bytes)
    )
}

/// Asks for confirmation at the terminal. Every answer except `y` and `yes` means no.
fn confirm_deletion(leftovers: &[UnusedFile]) -> Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let text = "cannot prompt: stdin is not a terminal; pass `--yes` to delete the files, or `--dry-run` to list them";
        return Err(TapeError::InvalidInput(text.to_owned()));
    }
    let mut stderr = std::io::stderr();
    let asked = write!(
        stderr,
        "Delete {} permanently? [y/N] ",
        total_text(leftovers)
    )
    .and_then(|()| stderr.flush());
    let mut answer = String::new();
    let answered = asked.and_then(|()| stdin.read_line(&mut answer));
    answered.map_err(|error| TapeError::from_io("read", std::path::Path::new("stdin"), error))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
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
