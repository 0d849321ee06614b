//! `bub tape anchors`: lists the anchors of a tape.

use std::process::ExitCode;

use bub_tape::{AnchorMark, AnchorQuery, Result, Tape, TapeError, codec};
use clap::{ArgMatches, Command};

use super::{
    json_arg, payload, tape_arg, text, text_arg, workspace_tapes::WorkspaceTapes,
    writer::ResultWriter,
};

/// Maximum characters shown of an anchor's state. `bub tape show` shows all of it.
const MAX_STATE_CHARS: usize = 100;

pub(super) fn command() -> Command {
    Command::new("anchors")
        .about("List the anchors of a tape")
        .arg(tape_arg())
        .arg(json_arg())
}

pub(super) async fn run(tapes: &WorkspaceTapes, matches: &ArgMatches) -> Result<ExitCode> {
    let listed = tapes
        .find_tape(text_arg(matches, "tape").unwrap_or_default())
        .await?;
    let anchors = tapes.open_tape(listed.name).anchors(usize::MAX).await?;
    let mut out = ResultWriter::for_stdout(&tapes.settings);
    if matches.get_flag("json") {
        for anchor in &anchors {
            out.write(&text::escape_json(&codec::encode(anchor)))?;
        }
    } else if anchors.is_empty() {
        out.write("(no anchors)\n")?;
    } else {
        let mut rows = vec![["ID", "DATE (UTC)", "NAME", "STATE"].map(str::to_owned)];
        rows.extend(anchors.iter().map(|anchor| {
            let state = text::sanitize_and_truncate(&payload::entry_text(anchor), MAX_STATE_CHARS);
            [
                anchor.id.to_string(),
                text::entry_date(anchor),
                text::sanitize_line(&payload::entry_label(anchor)),
                state,
            ]
        }));
        out.write(&text::format_columns(&rows))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the latest anchor with this name. If the tape has no such anchor, the error suggests
/// `bub tape anchors`.
pub(super) async fn find_anchor(tape: &Tape, name: &str, label: &str) -> Result<AnchorMark> {
    let anchor = tape
        .anchor_marks(AnchorQuery::LatestNamed(name.to_owned()))
        .await?
        .pop();
    anchor.ok_or_else(|| {
        TapeError::NotFound(format!(
            "anchor `{}` not found; see `bub tape anchors {}`",
            text::sanitize_line(name),
            text::sanitize_line(label)
        ))
    })
}
