//! How the result of a turn becomes the exit code of a command.

use std::process::ExitCode;

use bub_kernel::{Error, ErrorKind, Result, TurnReport};

/// The error that a turn ends its command with, if any: the one that ended the turn, an answer that is not complete, or
/// that no model is configured.
pub(super) fn failure(report: &TurnReport) -> Option<Error> {
    let own = report.error.clone().or_else(|| report.model_error.clone());
    own.or_else(|| report.has_no_model.then(no_model_error))
}

/// The exit code of a command that ran several turns, whose errors were shown already.
pub(super) fn exit_code(last_failure: Option<&TurnReport>) -> Result<ExitCode> {
    let Some(report) = last_failure else {
        return Ok(ExitCode::SUCCESS);
    };
    match failure(report) {
        None => Ok(ExitCode::SUCCESS),
        // A program that reads the answers must see that no model has answered.
        Some(error) if report.error.is_none() && report.model_error.is_none() => Err(error),
        Some(error) if error.kind() == ErrorKind::Config => Ok(ExitCode::from(2)),
        Some(_) => Ok(ExitCode::FAILURE),
    }
}

fn no_model_error() -> Error {
    Error::config(
        "no model is configured; `bub onboard` sets one up, `bub models` shows what can be used",
    )
}
