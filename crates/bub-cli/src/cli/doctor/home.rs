//! The home directory: there, writable, and nobody else's business.

use std::{
    fs::{self, OpenOptions},
    io::ErrorKind,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use super::{CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let home = check_context.settings.home();
    let shown = home.display();
    let mode = match fs::metadata(home) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let place = home.ancestors().find(|place| place.exists());
            return vec![match place.map_or(Ok(()), write) {
                Ok(()) => Finding::ok(format!(
                    "{shown} does not exist yet; the first command that needs it makes it"
                )),
                Err(error) => Finding::error(
                    format!("{shown} does not exist and cannot be made: {error}"),
                    "make it for your user, or set BUB_HOME",
                ),
            }];
        }
        Err(error) => {
            return vec![Finding::error(
                format!("{shown}: {error}"),
                "let your user in, or set BUB_HOME",
            )];
        }
        Ok(found) if !found.is_dir() => {
            return vec![Finding::error(
                format!("{shown} is no directory"),
                "move it away, or set BUB_HOME",
            )];
        }
        Ok(found) => found.permissions().mode(),
    };
    let mut findings = vec![match write(home) {
        Ok(()) => Finding::ok(shown.to_string()),
        Err(error) => Finding::error(
            format!("{shown} cannot be written: {error}"),
            format!("chown or chmod u+rwx {shown}"),
        ),
    }];
    if mode & 0o077 != 0 {
        let text = format!("{shown} can be read by others (mode {:o})", mode & 0o777);
        findings.push(Finding::warning(text, format!("chmod 700 {shown}")));
    }
    let file = check_context.settings.config_file();
    let mode = fs::metadata(file).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & 0o077 != 0 && check_context.settings.has_secrets_in_file() {
        let text = format!(
            "{} holds secrets and can be read by others (mode {mode:o})",
            file.display()
        );
        findings.push(Finding::warning(
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
