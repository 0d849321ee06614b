//! Checks that the home directory is writable, and that other users of the machine cannot read it.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use super::{CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let home = check_context.settings.home();
    let shown = home.display();
    let error = |text: String, fix: &str| vec![Finding::error(text, fix)];
    let mode = match fs::metadata(home) {
        Err(missing) if missing.kind() == ErrorKind::NotFound => {
            let parent = home.ancestors().find(|path| path.exists());
            return match parent.map_or(Ok(()), try_write) {
                Ok(()) => vec![Finding::ok(format!(
                    "{shown} does not exist yet; bub creates it when needed"
                ))],
                Err(reason) => error(
                    format!("{shown} does not exist and cannot be created: {reason}"),
                    "create it for your user, or set BUB_HOME",
                ),
            };
        }
        Err(reason) => {
            let text = format!("{shown} is not accessible: {reason}");
            return error(text, "give your user access, or set BUB_HOME");
        }
        Ok(metadata) if !metadata.is_dir() => {
            let text = format!("{shown} is not a directory");
            return error(text, "move it, or set BUB_HOME");
        }
        Ok(metadata) => metadata.permissions().mode(),
    };
    if let Err(reason) = try_write(home) {
        let text = format!("{shown} is not writable: {reason}");
        return error(text, &format!("chown or chmod u+rwx {shown}"));
    }
    let (mode, of_others) = (mode & 0o777, mode & 0o077);
    if of_others == 0 {
        return vec![Finding::ok(shown.to_string())];
    }
    let access = if mode & 0o022 == 0 {
        "readable"
    } else {
        "writable"
    };
    let text = format!("{shown} is {access} by other users (mode {mode:o})");
    vec![Finding::warning(text, format!("chmod 700 {shown}"))]
}

/// Creates and removes a file, to find out whether the directory is writable.
fn try_write(home: &Path) -> std::io::Result<()> {
    let probe = home.join(format!(".doctor-{}", std::process::id()));
    let mut options = File::options();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&probe)?;
    fs::remove_file(probe)
}
