//! Checks that the home directory is writable and readable only by its owner.

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
            let parent = home.ancestors().find(|path| path.exists());
            return vec![match parent.map_or(Ok(()), try_write) {
                Ok(()) => Finding::ok(format!(
                    "{shown} does not exist yet; bub creates it when needed"
                )),
                Err(error) => Finding::error(
                    format!("{shown} does not exist and cannot be created: {error}"),
                    "create it for your user, or set BUB_HOME",
                ),
            }];
        }
        Err(error) => {
            return vec![Finding::error(
                format!("{shown} is not accessible: {error}"),
                "give your user access, or set BUB_HOME",
            )];
        }
        Ok(metadata) if !metadata.is_dir() => {
            return vec![Finding::error(
                format!("{shown} is not a directory"),
                "move it, or set BUB_HOME",
            )];
        }
        Ok(metadata) => metadata.permissions().mode(),
    };
    let mut findings = vec![match try_write(home) {
        Ok(()) => Finding::ok(shown.to_string()),
        Err(error) => Finding::error(
            format!("{shown} is not writable: {error}"),
            format!("chown or chmod u+rwx {shown}"),
        ),
    }];
    if mode & 0o077 != 0 {
        let text = format!(
            "{shown} is readable by other users (mode {:o})",
            mode & 0o777
        );
        findings.push(Finding::warning(text, format!("chmod 700 {shown}")));
    }
    let file = check_context.settings.config_file();
    let mode = fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if mode & 0o077 != 0 && check_context.settings.has_secrets_in_file() {
        let text = format!(
            "{} contains secrets and is readable by other users (mode {mode:o})",
            file.display()
        );
        findings.push(Finding::warning(
            text,
            format!("chmod 600 {}", file.display()),
        ));
    }
    findings
}

/// Creates and removes a file, to find out whether the directory is writable.
fn try_write(home: &Path) -> std::io::Result<()> {
    let probe = home.join(format!(".doctor-{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&probe)?;
    fs::remove_file(probe)
}
