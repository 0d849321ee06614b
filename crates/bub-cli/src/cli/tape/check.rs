//! `bub tape check`: checks tapes for damage and repairs them.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::{Damage, RepairReport, Result, TapeError, TapeName, TapeStore as _, VerifyReport};
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{
    flag_arg, progress::ProgressLine, text, workspace_tapes::HomeTapes, writer::ResultWriter,
};

/// Maximum number of problems listed per tape. The rest is only counted.
const MAX_SHOWN_DAMAGE: usize = 20;
const REPAIR_FIX: &str = "run `bub tape check --repair`";

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Check tapes for damage")
        .long_about(
            "Check tapes for damage: torn tails, invalid lines, ids out of order, tool calls without results, missing or \
             damaged blobs, and a wrong index. Exits with 1 if damage remains.",
        )
        .arg(tapes_arg())
        .arg(flag_arg("repair", "Repair damage; removed data is kept in a separate file"))
}

/// Returns the argument that names tapes. Without a value, it means all tapes of the home.
pub(super) fn tapes_arg() -> Arg {
    Arg::new("tapes")
        .value_name("TAPE")
        .action(ArgAction::Append)
        .num_args(0..)
        .help("Session id, tape name, or a unique prefix [default: all tapes]")
}

/// Returns the tapes that the arguments name, with their sidecars.
pub(super) async fn selected_tapes(
    files: &HomeTapes,
    matches: &ArgMatches,
) -> Result<Vec<TapeName>> {
    let tapes = matches
        .get_many::<String>("tapes")
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    files.resolve_names(tapes).await
}

pub(super) async fn run(files: &HomeTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let names = selected_tapes(files, matches).await?;
    let repair = matches.get_flag("repair");
    let mut progress = ProgressLine::new("checking", names.len());
    let (mut report, mut damaged, mut unchecked) = (String::new(), 0, 0);
    for name in &names {
        let label = tape_label(files, name).await;
        progress.advance(&label);
        match check_tape(files, name, &label, repair, &mut report).await {
            Ok(remains) => damaged += u64::from(remains),
            Err(error) => {
                unchecked += 1;
                let _ = writeln!(
                    report,
                    "{label}: not checked: {}",
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
    if damaged > 0 {
        let hint = if repair {
            "see the reasons above; missing data can only be restored from a backup"
        } else {
            REPAIR_FIX
        };
        super::print_note(&format!(
            "{} damaged; {hint}",
            text::format_count(damaged, "tape is", "tapes are")
        ));
    }
    if unchecked > 0 {
        super::print_note(&format!(
            "{} could not be checked",
            text::format_count(unchecked, "tape", "tapes")
        ));
    }
    Ok(if damaged + unchecked == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks one tape, repairs it if wanted, and returns whether damage remains.
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
    match files.store.repair(name).await {
        Ok(repaired) => describe_repair(report, &repaired),
        Err(error @ TapeError::Busy { .. }) => {
            let _ = writeln!(
                report,
                "  not repaired: {}",
                text::sanitize_line(&error.to_string())
            );
            return Ok(true);
        }
        Err(error) => return Err(error),
    }
    let remaining = files.store.verify(name).await?;
    if !remaining.damage.is_empty() {
        write_damage(report, "  still", &remaining);
    }
    Ok(!remaining.damage.is_empty())
}

fn write_damage(report: &mut String, label: &str, verify_report: &VerifyReport) {
    let entries = text::format_count(verify_report.entries, "entry", "entries");
    if verify_report.damage.is_empty() {
        let _ = writeln!(report, "{label}: ok ({entries})");
        return;
    }
    let _ = writeln!(report, "{label}: damaged ({entries})");
    for damage in verify_report.damage.iter().take(MAX_SHOWN_DAMAGE) {
        let _ = writeln!(report, "  {}", text::sanitize_line(&damage.to_string()));
    }
    if let Some(more) = verify_report
        .damage
        .len()
        .checked_sub(MAX_SHOWN_DAMAGE)
        .filter(|more| *more > 0)
    {
        let _ = writeln!(report, "  and {more} more");
    }
    if verify_report.damage.iter().all(Damage::is_acceptable) {
        report.push_str("  (no data is lost: views skip or complete tool calls and results without a counterpart)\n");
    }
}

fn describe_repair(report: &mut String, repaired: &RepairReport) {
    for done in &repaired.done {
        let _ = writeln!(report, "  repaired: {done}");
    }
    for kept in &repaired.kept {
        let _ = writeln!(report, "  removed data is kept in: {}", kept.display());
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
    let session = files
        .store
        .summary(main)
        .await
        .ok()
        .and_then(|summary| summary.session);
    let label = session.map_or_else(|| main.to_string(), |session| session.session_id);
    text::sanitize_line(&label) + &sidecar
}
