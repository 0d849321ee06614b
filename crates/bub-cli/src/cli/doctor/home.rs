//! The home directory: there, writable, and nobody else's business.

use std::{
    fs::{self, OpenOptions},
    io::ErrorKind,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use super::{Finding, Patient};

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let home = patient.settings.home();
    let shown = home.display();
    let mode = match fs::metadata(home) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let place = home.ancestors().find(|place| place.exists());
            return vec![match place.map_or(Ok(()), write) {
                Ok(()) => Finding::fine(format!(
                    "{shown} does not exist yet; the first command that needs it makes it"
                )),
                Err(error) => Finding::broken(
                    format!("{shown} does not exist and cannot be made: {error}"),
                    "make it for your user, or set BUB_HOME",
                ),
            }];
        }
        Err(error) => {
            return vec![Finding::broken(
                format!("{shown}: {error}"),
                "let your user in, or set BUB_HOME",
            )];
        }
        Ok(found) if !found.is_dir() => {
            return vec![Finding::broken(
                format!("{shown} is no directory"),
                "move it away, or set BUB_HOME",
            )];
        }
        Ok(found) => found.permissions().mode(),
    };
    let mut findings = vec![match write(home) {
        Ok(()) => Finding::fine(shown.to_string()),
        Err(error) => Finding::broken(
            format!("{shown} cannot be written: {error}"),
            format!("chown or chmod u+rwx {shown}"),
        ),
    }];
    if mode & 0o077 != 0 {
        let text = format!("{shown} can be read by others (mode {:o})", mode & 0o777);
        findings.push(Finding::doubtful(text, format!("chmod 700 {shown}")));
    }
    let file = patient.settings.config_file();
    let mode = fs::metadata(file).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & 0o077 != 0 && patient.settings.has_secrets_in_file() {
        let text = format!(
            "{} holds secrets and can be read by others (mode {mode:o})",
            file.display()
        );
        findings.push(Finding::doubtful(
            text,
            format!("chmod 600 {}", file.display()),
        ));
    }
    findings
}

fn write(home: &Path) -> std::io::Result<()> {
    let probe = home.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&probe)?;
    fs::remove_file(probe)
}
