//! `bub tape check`: whether tapes are whole, and putting in order those that are not.

use std::{fmt::Write as _, process::ExitCode};

use bub_tape::{Damage, RepairReport, Result, TapeError, TapeName, TapeStore as _, VerifyReport};
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{context::HomeTapes, flag, progress::ProgressLine, text, writer::ResultWriter};

/// What is listed of one tape; the rest is only counted.
const MAX_SHOWN_DAMAGE: usize = 20;
const REPAIR_FIX: &str = "`bub tape check --repair` puts in order what can be";

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Check tapes for damage")
        .long_about(
            "Check tapes for damage: torn tails, invalid lines, ids out of order, tool calls without results, missing or \
             damaged blobs, and a wrong index. Exits with 1 if damage remains.",
        )
        .arg(tapes_arg())
        .arg(flag("repair", "Repair damage; removed data is kept in a separate file"))
}

/// Any number of tapes; none means all of the home.
pub(super) fn tapes_arg() -> Arg {
    Arg::new("tapes")
        .value_name("TAPE")
        .action(ArgAction::Append)
        .num_args(0..)
        .help("Session id, tape name, or a unique prefix [default: all tapes]")
}

/// The tapes that were named, with their sidecars.
pub(super) async fn selected_tapes(
    files: &HomeTapes,
    matches: &ArgMatches,
) -> Result<Vec<TapeName>> {
    let given = matches
        .get_many::<String>("tapes")
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    files.resolve_names(given).await
}

pub(super) async fn run(files: &HomeTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let names = selected_tapes(files, matches).await?;
    let repair = matches.get_flag("repair");
    let mut progress = ProgressLine::new("checking", names.len());
    let (mut report, mut damaged, mut unread) = (String::new(), 0, 0);
    for name in &names {
        let label = label(files, name).await;
        progress.next(&label);
        match one(files, name, &label, repair, &mut report).await {
            Ok(remains) => damaged += u64::from(remains),
            Err(error) => {
                unread += 1;
                let _ = writeln!(
                    report,
                    "{label}: not checked: {}",
                    text::line(&error.to_string())
                );
            }
        }
    }
    drop(progress);
    let mut out = ResultWriter::plain(&files.tapes.settings);
    out.write(if names.is_empty() {
        "(no tapes)\n"
    } else {
        &report
    })?;
    out.finish()?;
    if damaged > 0 {
        let next = if repair {
            "the lines above say why; what is missing comes from a copy only"
        } else {
            REPAIR_FIX
        };
        super::print_note(&format!(
            "{} damaged; {next}",
            text::count(damaged, "tape is", "tapes are")
        ));
    }
    if unread > 0 {
        super::print_note(&format!(
            "{} could not be checked",
            text::count(unread, "tape", "tapes")
        ));
    }
    Ok(if damaged + unread == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks one tape and says whether damage remains.
async fn one(
    files: &HomeTapes,
    name: &TapeName,
    label: &str,
    repair: bool,
    report: &mut String,
) -> Result<bool> {
    let verify_report = files.store.verify(name).await?;
    describe(report, label, &verify_report);
    if !repair || verify_report.damage.is_empty() {
        return Ok(!verify_report.damage.is_empty());
    }
    match files.store.repair(name).await {
        Ok(repaired) => describe_repair(report, &repaired),
        Err(error @ TapeError::Busy { .. }) => {
            let _ = writeln!(report, "  not repaired: {}", text::line(&error.to_string()));
            return Ok(true);
        }
        Err(error) => return Err(error),
    }
    let left = files.store.verify(name).await?;
    if !left.damage.is_empty() {
        describe(report, "  still", &left);
    }
    Ok(!left.damage.is_empty())
}

fn describe(report: &mut String, label: &str, verify_report: &VerifyReport) {
    let entries = text::count(verify_report.entries, "entry", "entries");
    if verify_report.damage.is_empty() {
        let _ = writeln!(report, "{label}: ok ({entries})");
        return;
    }
    let _ = writeln!(report, "{label}: damaged ({entries})");
    for damage in verify_report.damage.iter().take(MAX_SHOWN_DAMAGE) {
        let _ = writeln!(report, "  {}", text::line(&damage.to_string()));
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
        report.push_str("  (nothing is lost: views leave out or close what has no other half)\n");
    }
}

fn describe_repair(report: &mut String, repaired: &RepairReport) {
    for done in &repaired.done {
        let _ = writeln!(report, "  repaired: {done}");
    }
    for kept in &repaired.kept {
        let _ = writeln!(report, "  kept: {}", kept.display());
    }
}

/// What people call a tape; a sidecar by its tape and its own name.
pub(super) async fn label(files: &HomeTapes, name: &TapeName) -> String {
    let owner = name
        .as_sidecar()
        .and_then(|(owner, sidecar)| Some((TapeName::new(owner).ok()?, sidecar)));
    let (main, sidecar) = match &owner {
        Some((owner, sidecar)) => (owner, format!(" (sidecar {sidecar})")),
        None => (name, String::new()),
    };
    // A tape that cannot be summed up still has a name; why is told when it is worked on.
    let session = files
        .store
        .summary(main)
        .await
        .ok()
        .and_then(|summary| summary.session);
    let label = session.map_or_else(|| main.to_string(), |session| session.session_id);
    text::line(&label) + &sidecar
}
