//! The plugins that were added: what each was granted, and what it said about itself.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{descriptor::Descriptor, manifest::Manifest};

/// The name of the file in bub's home.
const PLUGINS_FILE: &str = "plugins.json";

/// A plugin that was added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstalledPlugin {
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstalledPlugins {
    /// The plugins.
    pub plugins: Vec<InstalledPlugin>,
    /// Rows that cannot be read. They are kept as they are.
    pub damaged: Vec<DamagedRecord>,
}

/// A row of the list that is no [`InstalledPlugin`].
#[derive(Clone, Debug, PartialEq)]
pub struct DamagedRecord {
    /// Why it cannot be read.
    pub problem: String,
    row: Value,
}

impl DamagedRecord {
    /// The name of the plugin, as far as it can be told.
    pub fn name(&self) -> &str {
        self.row
            .pointer("/manifest/name")
            .and_then(Value::as_str)
            .unwrap_or("?")
    }

    /// Whether tool calls have to wait for its word: certainly not if it is switched off, or says that it guards none.
    pub fn is_guard(&self) -> bool {
        let is_on = self
            .row
            .get("enabled")
            .is_none_or(|enabled| *enabled != Value::Bool(false));
        let hooks = self
            .row
            .get("descriptor")
            .filter(|descriptor| descriptor.is_object());
        let hooks = hooks.map(|descriptor| {
            descriptor
                .get("hooks")
                .cloned()
                .unwrap_or_else(|| json!([]))
        });
        let hooks = hooks.and_then(|hooks| serde_json::from_value(hooks).ok());
        is_on
            && hooks.is_none_or(|hooks| {
                Descriptor {
                    hooks,
                    ..Descriptor::default()
                }
                .is_guard()
            })
    }
}

/// The list as it is written. One without its key is no list: who knows what stood there.
#[derive(Serialize, Deserialize)]
struct PluginsFile {
    plugins: Vec<Value>,
}

impl InstalledPlugins {
    /// Reads the list in a home. A home without one has no plugins.
    pub fn load(home: &Path) -> Result<Self> {
        let file = home.join(PLUGINS_FILE);
        let wrong = |cause: &str, remedy: &str| {
            Error::config(format!("{}: {cause}; {remedy}", file.display()))
        };
        let anew = "move it away and add the plugins again";
        let text = match file.metadata() {
            // Reading a pipe or a device might never end.
            Ok(found) if !found.is_file() => return Err(wrong("it is no file", anew)),
            Ok(_) => std::fs::read_to_string(&file),
            Err(error) => Err(error),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !file.is_symlink() {
                    return Ok(Self::default());
                }
                return Err(wrong(
                    "it is a link to nowhere",
                    "put back what it points to, or remove the link",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(wrong("it is no text", anew));
            }
            Err(error) => return Err(wrong(&error.to_string(), "make it readable for you")),
        };
        let list: Value = serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            wrong(
                &format!("it is no JSON, from line {line}, column {column} on"),
                anew,
            )
        })?;
        let rows: PluginsFile = crate::parse::read(&list).map_err(|cause| wrong(&cause, anew))?;
        let mut installed = Self::default();
        for row in rows.plugins {
            match crate::parse::read(&row) {
                Ok(record) => installed.plugins.push(record),
                Err(cause) => {
                    let problem = format!("its row in {}: {cause}", file.display());
                    installed.damaged.push(DamagedRecord { problem, row });
                }
            }
        }
        Ok(installed)
    }

    /// Changes the list of a home, while nobody else does.
    pub fn change<T>(home: &Path, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(home)?;
        let mut options = OpenOptions::new();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(home.join(".plugins.lock"))?;
        lock.lock()?;
        let mut installed = Self::load(home)?;
        let outcome = change(&mut installed)?;
        installed.save(home)?;
        Ok(outcome)
    }

    fn save(&self, home: &Path) -> Result<()> {
        let unwritable = |error: serde_json::Error| Error::unknown(error.to_string());
        let rows: Result<Vec<_>, _> = self.plugins.iter().map(serde_json::to_value).collect();
        let mut plugins = rows.map_err(unwritable)?;
        plugins.extend(self.damaged.iter().map(|damaged| damaged.row.clone()));
        let text = serde_json::to_string_pretty(&PluginsFile { plugins }).map_err(unwritable)?;
        let temporary = home.join(format!(".{PLUGINS_FILE}.new"));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, home.join(PLUGINS_FILE))?;
        File::open(home)?.sync_all()?;
        Ok(())
    }

    /// The plugin of that name.
    pub fn find(&self, name: &str) -> Result<&InstalledPlugin> {
        self.plugins
            .iter()
            .find(|record| record.manifest.name == name)
            .ok_or_else(|| self.unknown(name))
    }

    /// The plugin of that name, to be changed.
    pub fn find_mut(&mut self, name: &str) -> Result<&mut InstalledPlugin> {
        let unknown = self.unknown(name);
        self.plugins
            .iter_mut()
            .find(|record| record.manifest.name == name)
            .ok_or(unknown)
    }

    fn unknown(&self, name: &str) -> Error {
        if let Some(damaged) = self.damaged.iter().find(|damaged| damaged.name() == name) {
            return Error::config(format!(
                "{}; remove the plugin and add it again",
                damaged.problem
            ));
        }
        let names = self
            .plugins
            .iter()
            .map(|record| record.manifest.name.as_str());
        let hint =
            bub_settings::closest(name, names).map(|known| format!("; did you mean `{known}`?"));
        Error::not_found(format!(
            "there is no plugin `{name}`{}",
            hint.unwrap_or_else(|| "; `bub plugin list` shows them".to_owned())
        ))
    }

    /// Forgets a plugin, readable or not.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let (readable, damaged) = (self.plugins.len(), self.damaged.len());
        let unknown = self.unknown(name);
        self.plugins.retain(|record| record.manifest.name != name);
        self.damaged.retain(|row| row.name() != name);
        let is_found = self.plugins.len() < readable || self.damaged.len() < damaged;
        if is_found { Ok(()) } else { Err(unknown) }
    }

    /// Adds a plugin, in the place of one of the same name.
    pub fn insert(&mut self, record: InstalledPlugin) {
        self.damaged
            .retain(|row| row.name() != record.manifest.name);
        match self
            .plugins
            .iter_mut()
            .find(|known| known.manifest.name == record.manifest.name)
        {
            Some(known) => *known = record,
            None => self.plugins.push(record),
        }
    }
}
