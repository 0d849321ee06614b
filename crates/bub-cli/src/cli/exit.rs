//! Converts the result of a turn into the exit code of a command.

use std::process::ExitCode;

use bub_kernel::{Error, ErrorKind, Result, TurnReport};

/// Returns the error that a command reports for a turn, if any: the error that ended the turn, the error that truncated
/// the answer, or that no model is configured.
pub(super) fn failure(report: &TurnReport) -> Option<Error> {
    let turn_error = report.error.clone().or_else(|| report.model_error.clone());
    turn_error.or_else(|| report.has_no_model.then(no_model_error))
}

/// Returns the exit code of a command that ran several turns and has already shown their errors.
pub(super) fn exit_code(last_failure: Option<&TurnReport>) -> Result<ExitCode> {
    let Some(report) = last_failure else {
        return Ok(ExitCode::SUCCESS);
    };
    match failure(report) {
        None => Ok(ExitCode::SUCCESS),
        // Return an error, because a program that reads the answers must learn that no model is configured.
        Some(error) if report.error.is_none() && report.model_error.is_none() => Err(error),
        Some(error) if error.kind() == ErrorKind::Config => Ok(ExitCode::from(2)),
        Some(_) => Ok(ExitCode::FAILURE),
    }
}

fn no_model_error() -> Error {
    Error::config(
        "no model is configured; run `bub onboard` to set one up, or `bub models` to list available models",
    )
}
