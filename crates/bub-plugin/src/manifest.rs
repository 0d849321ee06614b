//! The manifest of a plugin: its command, environment variables and settings.

use std::path::{Path, PathBuf};

use bub_kernel::{Error, Result};
use bub_settings::{DynamicSetting, Section, SettingSpec, ValueKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the manifest file in a plugin directory.
pub const MANIFEST_FILE: &str = "bub-plugin.yml";
/// Maximum size of a manifest in bytes.
const MAX_MANIFEST_BYTES: u64 = 64 * 1024;

/// Content of a manifest file.
///
/// ```
/// use bub_plugin::Manifest;
///
/// let manifest = Manifest::parse("name: weather\ncommand: [python3, weather.py]\n")?;
/// assert_eq!(manifest.name, "weather");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the plugin. Also the name of its section in the configuration.
    pub name: String,
    /// One-line description of the plugin.
    #[serde(default)]
    pub description: String,
    /// Program and arguments. Relative paths start at the directory of the manifest.
    pub command: Vec<String>,
    /// Names of environment variables that the plugin needs. Every child process also gets a few common variables.
    #[serde(default)]
    pub env: Vec<String>,
    /// Settings that the plugin declares.
    #[serde(default)]
    pub settings: Vec<SettingDecl>,
    /// Names of files in bub's home that the plugin uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub home_files: Vec<String>,
    /// What the plugin can reach in its sandbox.
    #[serde(default, skip_serializing_if = "Permissions::is_default")]
    pub permissions: Permissions,
}

/// What a plugin can reach in addition to its directory, the workspace and programs of the system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Permissions {
    /// Whether the plugin can use the network. Default: true.
    pub network: bool,
    /// Paths that the plugin can read: absolute, or below the home directory with `~/`.
    pub read: Vec<String>,
    /// Paths that the plugin can write to.
    pub write: Vec<String>,
}

impl Default for Permissions {
    fn default() -> Self {
        Self {
            network: true,
            read: Vec::new(),
            write: Vec::new(),
        }
    }
}

impl Permissions {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A setting of a plugin, `<plugin>.<name>` in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingDecl {
    /// Name of the setting, without the section.
    pub name: String,
    /// Type of the value: `string` (default), `integer`, `number`, `boolean`, `list` or `map`.
    #[serde(default, rename = "type")]
    pub kind: SettingKind,
    /// Help text.
    #[serde(default)]
    pub help: String,
    /// Whether the value is a secret, which is never printed.
    #[serde(default)]
    pub secret: bool,
}

/// Type of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names describe the types")]
pub enum SettingKind {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
    List,
    Map,
}

impl Manifest {
    /// Reads the manifest of a plugin directory. For an executable file, which has no manifest, builds one from the
    /// name and path of the file.
    ///
    /// Returns the manifest, the working directory of the plugin, and the file or directory for
    /// [`compute_pin`](crate::compute_pin).
    ///
    /// # Errors
    ///
    /// Fails if the path does not exist or if the manifest cannot be read or is invalid.
    pub fn load_for_path(path: &Path) -> Result<(Self, PathBuf, PathBuf)> {
        let absolute = path.canonicalize().map_err(|error| {
            Error::invalid_input(format!(
                "cannot read `{}`: {error}; check the path",
                path.display()
            ))
        })?;
        if absolute.is_dir() {
            let manifest = Self::read_file(&absolute.join(MANIFEST_FILE))?;
            return Ok((manifest, absolute.clone(), absolute));
        }
        let directory = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let name = absolute.file_stem().unwrap_or_default().to_string_lossy();
        let manifest = Self {
            name: name.into_owned(),
            command: vec![absolute.to_string_lossy().into_owned()],
            ..Self::default()
        };
        manifest.check(path)?;
        Ok((manifest, directory, absolute))
    }

    fn read_file(file: &Path) -> Result<Self> {
        let path = file.display();
        let file_error = |cause: String| Error::invalid_input(format!("{path}: {cause}"));
        let metadata = file.metadata().map_err(|error| {
            file_error(format!(
                "{error}; a plugin directory must contain this file; `bub plugin new` creates one"
            ))
        })?;
        if !metadata.is_file() {
            return Err(file_error(
                "not a regular file; replace it with a manifest".to_owned(),
            ));
        }
        if metadata.len() > MAX_MANIFEST_BYTES {
            return Err(file_error(format!(
                "larger than {MAX_MANIFEST_BYTES} bytes; shorten it"
            )));
        }
        let text = std::fs::read_to_string(file).map_err(|error| {
            file_error(format!("{error}; check that it is a readable UTF-8 file"))
        })?;
        Self::parse(&text).map_err(file_error)
    }

    /// Parses and checks the text of a manifest. The error text has one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = bub_settings::parse_yaml(text).map_err(|error| error.to_string())?;
        let manifest: Self = crate::parse::deserialize_map(&value)?;
        manifest.problem().map_or(Ok(manifest), Err)
    }

    fn check(&self, file: &Path) -> Result<()> {
        let invalid = |cause| Err(Error::invalid_input(format!("{}: {cause}", file.display())));
        self.problem().map_or(Ok(()), invalid)
    }

    /// Returns what is wrong with the manifest, if anything.
    pub fn problem(&self) -> Option<String> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_valid_name =
            |name: &str| !name.is_empty() && name.len() <= 64 && name.chars().all(is_allowed);
        if !is_valid_name(&self.name) {
            let name = self.name.escape_debug();
            return Some(format!(
                "invalid plugin name `{name}`: expected letters, digits, - and _"
            ));
        }
        if self.name == "builtin" {
            return Some("the plugin name `builtin` is reserved; choose another name".to_owned());
        }
        let is_invalid_variable = |name: &&String| !is_valid_name(name) || name.contains('-');
        if let Some(name) = self.env.iter().find(is_invalid_variable) {
            return Some(format!(
                "invalid environment variable name `{name}` in `env`: expected letters, digits and _"
            ));
        }
        let mut setting_names = self.settings.iter().map(|setting| &setting.name);
        if let Some(name) = setting_names.find(|name| !is_valid_name(name)) {
            return Some(format!(
                "invalid setting name `{name}`: expected letters, digits, - and _"
            ));
        }
        let is_path =
            |name: &&String| name.is_empty() || name.starts_with('.') || name.contains('/');
        if let Some(name) = self.home_files.iter().find(is_path) {
            return Some(format!(
                "invalid file name `{name}` in `home_files`: expected the name of a file in bub's home"
            ));
        }
        if self.command.iter().all(|part| part.trim().is_empty()) {
            return Some("`command` is empty: expected a program and its arguments".to_owned());
        }
        let texts = self.command.iter().chain([&self.description]);
        let mut texts = texts.chain(self.settings.iter().map(|setting| &setting.help));
        texts.any(|text| has_control_chars(text)).then(|| {
            "control characters in `command`, `description` or `help`; remove them".to_owned()
        })
    }

    /// Returns a section of the config with the settings that the plugin declares. Without `has_variables`, environment
    /// variables do not set them.
    pub fn settings_section(&self, has_variables: bool) -> Section {
        let settings = self.settings.iter();
        let settings = settings.map(|entry| self.dynamic_setting(entry, has_variables));
        Section::dynamic(self.name.clone(), settings.collect())
    }

    fn dynamic_setting(&self, entry: &SettingDecl, has_variables: bool) -> DynamicSetting {
        let kind = match entry.kind {
            SettingKind::String => ValueKind::Text,
            SettingKind::Integer => ValueKind::Integer,
            SettingKind::Number => ValueKind::Number,
            SettingKind::Boolean => ValueKind::Bool,
            SettingKind::List => ValueKind::List,
            SettingKind::Map => ValueKind::Map,
        };
        let key = format!("{}.{}", self.name, entry.name);
        let mut setting = SettingSpec::dynamic(key, kind, entry.help.clone());
        setting.nullable = true;
        setting.secret = entry.secret;
        if !has_variables {
            setting = setting.without_variable();
        }
        DynamicSetting {
            setting,
            default: Value::Null,
        }
    }
}

/// Returns whether a text contains control characters, which a terminal would interpret. Newlines and tabs do not
/// count.
pub(crate) fn has_control_chars(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
}
