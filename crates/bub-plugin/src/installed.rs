//! The list of installed plugins in `plugins.json`: manifest, pinned files and descriptor of each plugin.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result};
use bub_settings::{PLUGIN_SKILLS_DIR, Section};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    descriptor::{Descriptor, HookDecl, deserialize_hooks},
    manifest::Manifest,
};

/// Name of the file in bub's home that lists the plugins.
const PLUGINS_FILE: &str = "plugins.json";

/// An installed plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstalledPlugin {
    /// Manifest of the plugin when it was added.
    pub manifest: Manifest,
    /// Working directory of the process.
    pub directory: PathBuf,
    /// File or directory of the plugin. `digest` is computed from its content.
    pub pinned: PathBuf,
    /// Digest of the files when the plugin was added. `None` for an unpinned plugin, whose files may change.
    pub digest: Option<String>,
    /// Whether the plugin is enabled.
    pub enabled: bool,
    /// Descriptor that the plugin returned when it was added.
    pub descriptor: Descriptor,
    /// The Python package that the plugin belongs to, if `bub install` installed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<PythonPackage>,
    /// Digest of the settings and variables that the plugin was described with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Returns a digest of the settings and environment variables of a plugin.
pub fn fingerprint(
    config: &Value,
    variables: impl Iterator<Item = (String, Option<OsString>)>,
) -> String {
    let mut hasher = Sha256::new();
    hasher.update(config.to_string());
    for (name, value) in variables {
        let value = value.unwrap_or_default();
        hasher.update([0]);
        hasher.update(name);
        hasher.update([0]);
        hasher.update(value.as_encoded_bytes());
    }
    format!("{:x}", hasher.finalize())
}

/// A Python package in the environment that bub manages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonPackage {
    /// Name of the distribution.
    pub name: String,
    /// What the user installed: a name, a version, a path or an address.
    pub requirement: String,
}

impl InstalledPlugin {
    /// Returns a section of the config with the settings that the plugin declares.
    pub fn settings_section(&self) -> Section {
        // The settings classes of a Python plugin read their own environment variables.
        self.manifest.settings_section(self.package.is_none())
    }
}

/// All installed plugins, in registration order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstalledPlugins {
    /// Plugins whose record is readable.
    pub plugins: Vec<InstalledPlugin>,
    /// Records that cannot be read. They are kept unchanged in the file.
    pub damaged: Vec<DamagedRecord>,
}

/// A record in the file that is not a valid [`InstalledPlugin`].
#[derive(Clone, Debug, PartialEq)]
pub struct DamagedRecord {
    /// Why the record cannot be read.
    pub problem: String,
    record: Value,
}

impl DamagedRecord {
    /// Returns the name of the plugin, or `?` if the record does not contain it.
    pub fn name(&self) -> &str {
        self.record
            .pointer("/manifest/name")
            .and_then(Value::as_str)
            .unwrap_or("?")
    }

    /// Returns whether the plugin may be a guard (see [`Descriptor::is_guard`]). A plugin whose hooks cannot be read
    /// may be a guard; a disabled plugin is not.
    pub fn is_guard(&self) -> bool {
        #[derive(Deserialize)]
        struct Hooks {
            #[serde(default, deserialize_with = "deserialize_hooks")]
            hooks: Vec<HookDecl>,
        }
        let is_enabled = self.record.get("enabled") != Some(&Value::Bool(false));
        let descriptor = self.record.get("descriptor");
        let is_guard = match descriptor.map(Hooks::deserialize) {
            Some(Ok(Hooks { hooks })) if descriptor.is_some_and(Value::is_object) => {
                hooks.iter().any(HookDecl::is_guard)
            }
            _ => true,
        };
        is_enabled && is_guard
    }
}

/// Content of `plugins.json`. The key `plugins` is required: a file without it may be damaged.
#[derive(Serialize, Deserialize)]
struct PluginsFile {
    plugins: Vec<Value>,
}

impl InstalledPlugins {
    /// Reads the list of plugins of a home. If `plugins.json` does not exist, the list is empty.
    pub fn load(home: &Path) -> Result<Self> {
        let file = home.join(PLUGINS_FILE);
        let file_error = |cause: &str, remedy: &str| {
            Error::config(format!("{}: {cause}; {remedy}", file.display()))
        };
        let recreate_hint = "move it away and add the plugins again";
        let text = match file.metadata() {
            // Reading a pipe or a device may never end.
            Ok(metadata) if !metadata.is_file() => {
                return Err(file_error("not a regular file", recreate_hint));
            }
            Ok(_) => std::fs::read_to_string(&file),
            Err(error) => Err(error),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !file.is_symlink() {
                    return Ok(Self::default());
                }
                return Err(file_error(
                    "broken symbolic link",
                    "restore its target or remove the link",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(file_error("not valid UTF-8", recreate_hint));
            }
            Err(error) => return Err(file_error(&error.to_string(), "check its permissions")),
        };
        let list: Value = serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let cause = format!("invalid JSON at line {line}, column {column}");
            file_error(&cause, recreate_hint)
        })?;
        let records: PluginsFile = crate::parse::deserialize_map(&list)
            .map_err(|cause| file_error(&cause, recreate_hint))?;
        let mut installed = Self::default();
        for record in records.plugins {
            match crate::parse::deserialize_map(&record) {
                Ok(plugin) => installed.plugins.push(plugin),
                Err(cause) => {
                    let problem = format!("invalid record in {}: {cause}", file.display());
                    installed.damaged.push(DamagedRecord { problem, record });
                }
            }
        }
        Ok(installed)
    }

    /// Reads the list of plugins of a home, changes it with `change` and writes it back. Holds an exclusive file lock
    /// meanwhile.
    pub fn update<T>(home: &Path, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let write_error = |error| write_error(&home.join(PLUGINS_FILE), &error);
        let _lock = lock_list(home).map_err(write_error)?;
        let mut installed = Self::load(home)?;
        let outcome = change(&mut installed)?;
        installed.save(home)?;
        Ok(outcome)
    }

    fn save(&self, home: &Path) -> Result<()> {
        let encode_error = |error: serde_json::Error| {
            Error::unknown(format!("cannot encode {PLUGINS_FILE}: {error}"))
        };
        let records: Result<Vec<_>, _> = self.plugins.iter().map(serde_json::to_value).collect();
        let mut plugins = records.map_err(encode_error)?;
        plugins.extend(self.damaged.iter().map(|damaged| damaged.record.clone()));
        let text = serde_json::to_string_pretty(&PluginsFile { plugins }).map_err(encode_error)?;
        write_list(home, &text).map_err(|error| write_error(&home.join(PLUGINS_FILE), &error))?;
        self.link_skills(&home.join(PLUGIN_SKILLS_DIR))?;
        Ok(())
    }

    /// Makes `directory` contain links to the skills of all enabled plugins, and nothing else.
    fn link_skills(&self, directory: &Path) -> io::Result<()> {
        let enabled = self.plugins.iter().filter(|plugin| plugin.enabled);
        let skills: Vec<_> = enabled
            .flat_map(|plugin| &plugin.descriptor.skills)
            .collect();
        if skills.is_empty() && !directory.exists() {
            return Ok(());
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        for entry in std::fs::read_dir(directory)? {
            std::fs::remove_file(entry?.path())?;
        }
        for skill in skills {
            let link = directory.join(skill.file_name().unwrap_or_default());
            if !link.is_symlink() {
                std::os::unix::fs::symlink(skill, link)?;
            }
        }
        Ok(())
    }

    /// Returns the plugin with this name.
    ///
    /// # Errors
    ///
    /// Fails if the plugin is not installed or if its record is damaged.
    pub fn find(&self, name: &str) -> Result<&InstalledPlugin> {
        let mut plugins = self.plugins.iter();
        let plugin = plugins.find(|plugin| plugin.manifest.name == name);
        plugin.ok_or_else(|| self.unknown_plugin_error(name))
    }

    /// Returns the plugin with this name, mutably.
    ///
    /// # Errors
    ///
    /// Fails if the plugin is not installed or if its record is damaged.
    pub fn find_mut(&mut self, name: &str) -> Result<&mut InstalledPlugin> {
        let unknown = self.unknown_plugin_error(name);
        let mut plugins = self.plugins.iter_mut();
        let plugin = plugins.find(|plugin| plugin.manifest.name == name);
        plugin.ok_or(unknown)
    }

    fn unknown_plugin_error(&self, name: &str) -> Error {
        if let Some(damaged) = self.damaged.iter().find(|damaged| damaged.name() == name) {
            return Error::config(format!(
                "{}; remove the plugin and add it again",
                damaged.problem
            ));
        }
        let plugins = self.plugins.iter();
        let names = plugins.map(|plugin| plugin.manifest.name.as_str());
        let hint = match bub_settings::closest_match(name, names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "run `bub plugin list` to see installed plugins".to_owned(),
        };
        Error::not_found(format!("unknown plugin `{name}`; {hint}"))
    }

    /// Removes the plugin with this name, even if its record is damaged. Fails if no record has the name.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let unknown = self.unknown_plugin_error(name);
        let count = self.plugins.len() + self.damaged.len();
        self.plugins.retain(|plugin| plugin.manifest.name != name);
        self.damaged.retain(|record| record.name() != name);
        let is_removed = self.plugins.len() + self.damaged.len() < count;
        if is_removed { Ok(()) } else { Err(unknown) }
    }

    /// Adds a plugin. Replaces a plugin with the same name.
    pub fn insert(&mut self, plugin: InstalledPlugin) {
        self.damaged
            .retain(|record| record.name() != plugin.manifest.name);
        let name = plugin.manifest.name.clone();
        match self.find_mut(&name) {
            Ok(existing) => *existing = plugin,
            Err(_) => self.plugins.push(plugin),
        }
    }
}

/// Creates the home if it does not exist, and locks its list of plugins until the returned file is dropped.
fn lock_list(home: &Path) -> io::Result<File> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(home)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(home.join(".plugins.lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Replaces the list of plugins in a home, so that readers see either the old or the new content.
fn write_list(home: &Path, text: &str) -> io::Result<()> {
    let temporary = home.join(format!(".{PLUGINS_FILE}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, home.join(PLUGINS_FILE))?;
    File::open(home)?.sync_all()
}

/// Builds the error for a list of plugins that cannot be locked or written.
fn write_error(file: &Path, error: &io::Error) -> io::Error {
    let text = format!(
        "cannot write `{}`: {error}; check the permissions and the free space",
        file.display()
    );
    io::Error::new(error.kind(), text)
}
