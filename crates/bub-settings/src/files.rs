//! Reads the config file and the `.env` file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::SettingsError;

/// Maximum size of a settings file. It keeps a wrong path from filling the memory.
pub(crate) const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Reads a text file; returns `None` if it does not exist.
pub(crate) fn read_text_file(path: &Path) -> Result<Option<String>, SettingsError> {
    match read_bytes(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| SettingsError::NotText {
                location: path.display().to_string(),
            }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::Unreadable {
            file: path.to_owned(),
            source,
        }),
    }
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        // Opening a pipe without a writer would block at startup.
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a config file like [`read_text_file`], unless other users can change it or its directory.
pub(crate) fn read_own_file(path: &Path) -> Result<Option<String>, SettingsError> {
    path.parent().map_or(Ok(()), check_writers)?;
    check_writers(path)?;
    read_text_file(path)
}

/// Checks that no other user can write to a file or directory.
///
/// Root is such a user only in name, and root may use files of others: in containers, volumes often
/// belong to a user of the host. Groups are the administrator's choice; `bub doctor` reports them.
fn check_writers(path: &Path) -> Result<(), SettingsError> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    let user = rustix::process::geteuid();
    let shown = path.display();
    let (problem, fix) = if owner != 0 && owner != user.as_raw() && !user.is_root() {
        let problem = format!("it belongs to another user (id {owner})");
        (problem, format!("sudo chown {} {shown}", user.as_raw()))
    } else if mode & 0o002 != 0 {
        let problem = format!("every user of this machine can write to it (mode {mode:o})");
        (problem, format!("chmod o-w {shown}"))
    } else {
        return Ok(());
    };
    Err(SettingsError::Unsafe {
        path: path.to_owned(),
        problem,
        fix,
    })
}

/// Returns the path and the text of the config file.
///
/// This is the file in the home if it exists, else the one in `~/.bub`, where the Python version
/// keeps it. If neither exists, the path is that of the file in the home, and the text is `None`.
pub(crate) fn read_config_file(
    home: &Path,
    user_home: Option<&Path>,
) -> (PathBuf, Result<Option<String>, SettingsError>) {
    let home_file = home.join("config.yml");
    let text = read_own_file(&home_file);
    let default_file = user_home
        .map(|user| user.join(".bub/config.yml"))
        .filter(|default_file| *default_file != home_file)
        .filter(|default_file| default_file.try_exists().unwrap_or(true));
    match (text, default_file) {
        // A dangling link shows that the user wants this file, so do not read the one in `~/.bub`.
        (Ok(None), _) if home_file.is_symlink() => {
            let source = io::Error::other("a link to a file that does not exist");
            let error = SettingsError::Unreadable {
                file: home_file.clone(),
                source,
            };
            (home_file, Err(error))
        }
        (Ok(None), Some(default_file)) => match read_own_file(&default_file) {
            Ok(None) => (home_file, Ok(None)),
            text => (default_file, text),
        },
        (text, _) => (home_file, text),
    }
}
