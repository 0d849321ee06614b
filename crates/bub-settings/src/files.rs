//! Reading the two files settings come from.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::SettingsError;

/// More than any config file has; keeps a wrong path from filling the memory.
pub(crate) const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The text of a file; `None` when there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, SettingsError> {
    match read_bytes(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| SettingsError::NotText {
                place: path.display().to_string(),
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
        // Opening a pipe that nobody writes to would hang the start.
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

/// The config file: the home's if it exists, else the one in `~/.bub`, where the original keeps it.
/// Comes with its text; a file that does not exist yet belongs into the home.
pub(crate) fn config(
    home: &Path,
    user_home: Option<&Path>,
) -> (PathBuf, Result<Option<String>, SettingsError>) {
    let own = home.join("config.yml");
    let text = read(&own);
    let usual = user_home
        .map(|user| user.join(".bub/config.yml"))
        .filter(|usual| *usual != own);
    match (text, usual) {
        // Whoever made the link does not mean another file.
        (Ok(None), _) if own.is_symlink() => {
            let source = io::Error::other("it is a link to a file that does not exist");
            let error = SettingsError::Unreadable {
                file: own.clone(),
                source,
            };
            (own, Err(error))
        }
        (Ok(None), Some(usual)) => match read(&usual) {
            Ok(None) => (own, Ok(None)),
            text => (usual, text),
        },
        (text, _) => (own, text),
    }
}
