//! The manifest beside a plugin: how it is started, and what it wants.

use std::path::{Path, PathBuf};

use bub_kernel::{Error, Result};
use bub_settings::{DynamicSetting, Section, SettingSpec, ValueKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the file.
pub const MANIFEST_FILE: &str = "bub-plugin.yml";
/// No manifest is longer, in bytes.
const MAX_MANIFEST_BYTES: u64 = 64 * 1024;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name of the plugin, which is also that of its part of the configuration.
    pub name: String,
    /// What it does, in a line.
    #[serde(default)]
    pub description: String,
    /// The program and its arguments. A path is relative to the manifest.
    pub command: Vec<String>,
    /// The environment variables it wants beyond those every child gets.
    #[serde(default)]
    pub env: Vec<String>,
    /// The settings it has.
    #[serde(default)]
    pub settings: Vec<SettingDecl>,
}

/// A setting of a plugin: `<plugin>.<name>` in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingDecl {
    /// Its name.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `list` or `map`.
    #[serde(default, rename = "type")]
    pub kind: SettingKind,
    /// What it is for.
    #[serde(default)]
    pub help: String,
    /// Whether it is never shown.
    #[serde(default)]
    pub secret: bool,
}

/// The type of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "they are what they are called")]
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
    /// Reads the manifest of a directory, or makes one for an executable that stands alone. Returns it with the
    /// directory the plugin runs in, and what is pinned.
    pub fn find(path: &Path) -> Result<(Self, PathBuf, PathBuf)> {
        let absolute = path.canonicalize().map_err(|error| {
            Error::invalid_input(format!("`{}` cannot be read: {error}", path.display()))
        })?;
        if absolute.is_dir() {
            return Ok((
                Self::read(&absolute.join(MANIFEST_FILE))?,
                absolute.clone(),
                absolute,
            ));
        }
        let directory = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let manifest = Self {
            name: absolute
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            command: vec![absolute.to_string_lossy().into_owned()],
            ..Self::default()
        };
        manifest.check(path)?;
        Ok((manifest, directory, absolute))
    }

    fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let wrong = |cause: String| Error::invalid_input(format!("{shown}: {cause}"));
        let length = file.metadata().map_err(|error| {
            wrong(format!(
                "{error}; a plugin directory has this file, and `bub plugin new` makes one"
            ))
        })?;
        if !length.is_file() {
            return Err(wrong("it is no file".to_owned()));
        }
        if length.len() > MAX_MANIFEST_BYTES {
            return Err(wrong(format!(
                "it is longer than {MAX_MANIFEST_BYTES} bytes"
            )));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    /// Reads what a file says; the error is one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = bub_settings::parse_yaml(text).map_err(|error| error.to_string())?;
        let manifest: Self = crate::parse::read(&value)?;
        manifest.problem().map_or(Ok(manifest), Err)
    }

    fn check(&self, file: &Path) -> Result<()> {
        let wrong = |cause| Err(Error::invalid_input(format!("{}: {cause}", file.display())));
        self.problem().map_or(Ok(()), wrong)
    }

    /// What is wrong with it.
    pub fn problem(&self) -> Option<String> {
        let wrong = |cause: String| Some(cause);
        let is_plain = |name: &str| {
            let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !name.is_empty() && name.len() <= 64 && name.chars().all(is_fine)
        };
        if !is_plain(&self.name) {
            let name = self.name.escape_debug();
            return wrong(format!(
                "`{name}` is no name for a plugin: letters, digits, - and _"
            ));
        }
        if self.name == "builtin" {
            return wrong("the name `builtin` is taken".to_owned());
        }
        if let Some(name) = self
            .env
            .iter()
            .find(|name| !is_plain(name) || name.contains('-'))
        {
            return wrong(format!("`{name}` is no name of an environment variable"));
        }
        if let Some(setting) = self
            .settings
            .iter()
            .find(|setting| !is_plain(&setting.name))
        {
            return wrong(format!(
                "`{}` is no name for a setting: letters, digits, - and _",
                setting.name
            ));
        }
        if self.command.iter().all(|part| part.trim().is_empty()) {
            return wrong("`command` is empty".to_owned());
        }
        let texts = self.command.iter().chain([&self.description]);
        let mut texts = texts.chain(self.settings.iter().map(|setting| &setting.help));
        texts
            .any(|text| has_control_chars(text))
            .then(|| "control characters are not allowed in it".to_owned())
    }

    /// Its settings, for the program to read.
    pub fn section(&self) -> Section {
        Section::dynamic(
            self.name.clone(),
            self.settings.iter().map(|entry| self.key(entry)).collect(),
        )
    }

    fn key(&self, entry: &SettingDecl) -> DynamicSetting {
        let kind = match entry.kind {
            SettingKind::String => ValueKind::Text,
            SettingKind::Integer => ValueKind::Integer,
            SettingKind::Number => ValueKind::Number,
            SettingKind::Boolean => ValueKind::Bool,
            SettingKind::List => ValueKind::List,
            SettingKind::Map => ValueKind::Map,
        };
        let setting = SettingSpec::dynamic(
            format!("{}.{}", self.name, entry.name),
            kind,
            entry.help.clone(),
        );
        let setting = setting.nullable();
        DynamicSetting {
            setting: if entry.secret {
                setting.secret()
            } else {
                setting
            },
            default: Value::Null,
        }
    }
}

/// Whether a text holds what a terminal would obey.
pub(crate) fn has_control_chars(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
}
