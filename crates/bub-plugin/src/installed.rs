//! The plugins that were added: what each was granted, and what it said about itself.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::{descriptor::Descriptor, manifest::Manifest};

/// The name of the file in bub's home.
const FILE: &str = "plugins.json";

/// A plugin that was added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// How it is started, and what it was granted.
    pub manifest: Manifest,
    /// Where it runs.
    pub directory: PathBuf,
    /// The file or directory it consists of.
    pub pinned: PathBuf,
    /// What that was when it was added; nothing for one that may change.
    pub digest: Option<String>,
    /// Whether it is used.
    pub enabled: bool,
    /// What it said about itself.
    pub descriptor: Descriptor,
}

/// All plugins that were added, in the order of registration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Installed {
    /// The plugins.
    #[serde(default)]
    pub plugins: Vec<Record>,
}

impl Installed {
    /// Reads the list in a home. A home without one has no plugins.
    pub fn load(home: &Path) -> Result<Self> {
        let file = home.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Error::config(format!("{}: {error}", file.display()))),
        };
        serde_json::from_str(&text).map_err(|error| {
            Error::config(format!("{}: {error}; move it away and add the plugins again", file.display()))
        })
    }

    /// Changes the list of a home, while nobody else does.
    pub fn change<T>(home: &Path, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        std::fs::create_dir_all(home)?;
        let lock = File::create(home.join(".plugins.lock"))?;
        lock.lock()?;
        let mut installed = Self::load(home)?;
        let outcome = change(&mut installed)?;
        installed.save(home)?;
        Ok(outcome)
    }

    fn save(&self, home: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::unknown(error.to_string()))?;
        let temporary = home.join(format!(".{FILE}.new"));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, home.join(FILE))?;
        File::open(home)?.sync_all()?;
        Ok(())
    }

    /// The plugin of that name.
    pub fn find(&self, name: &str) -> Result<&Record> {
        self.plugins.iter().find(|record| record.manifest.name == name).ok_or_else(|| self.unknown(name))
    }

    /// The plugin of that name, to be changed.
    pub fn find_mut(&mut self, name: &str) -> Result<&mut Record> {
        let unknown = self.unknown(name);
        self.plugins.iter_mut().find(|record| record.manifest.name == name).ok_or(unknown)
    }

    fn unknown(&self, name: &str) -> Error {
        let names = self.plugins.iter().map(|record| record.manifest.name.as_str());
        let hint = bub_settings::closest(name, names).map(|known| format!("; did you mean `{known}`?"));
        Error::not_found(format!(
            "there is no plugin `{name}`{}",
            hint.unwrap_or_else(|| "; `bub plugin list` shows them".to_owned())
        ))
    }

    /// Adds a plugin, in the place of one of the same name.
    pub fn put(&mut self, record: Record) {
        match self.plugins.iter_mut().find(|known| known.manifest.name == record.manifest.name) {
            Some(known) => *known = record,
            None => self.plugins.push(record),
        }
    }
}
