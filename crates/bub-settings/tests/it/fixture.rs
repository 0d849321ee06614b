//! A home, a workspace and an environment, all in a temporary directory.
//!
//! The sandbox of `bub-testkit` is for programs; here the settings are loaded in the process, from these variables only.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use bub_settings::{
    AnySetting, Environment, Loader, Redactor, Settings, SettingsError, WorkspaceTrust,
};
use tempfile::TempDir;

use crate::sample;

pub(crate) struct SettingsFixture {
    directory: TempDir,
    variables: Vec<(String, OsString)>,
    flags: Vec<(String, String)>,
    is_trusted: bool,
    pub(crate) redactor: Redactor,
}

impl SettingsFixture {
    /// Creates an empty user home and an empty workspace; `HOME` is the only variable.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("user/.bub")).unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let home = directory.path().join("user").into_os_string();
        Self {
            directory,
            variables: vec![("HOME".into(), home)],
            flags: Vec::new(),
            is_trusted: true,
            redactor: Redactor::new(),
        }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// Writes a file in the temporary directory.
    pub(crate) fn file(self, relative: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn config(self, yaml: impl AsRef<[u8]>) -> Self {
        self.file("user/.bub/config.yml", yaml)
    }

    pub(crate) fn dotenv(self, text: impl AsRef<[u8]>) -> Self {
        self.file("work/.env", text)
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn flag(mut self, key: &str, value: &str) -> Self {
        self.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn trusted(mut self) -> Self {
        self.is_trusted = true;
        self
    }

    /// Does not trust the workspace. By default, it is trusted.
    pub(crate) fn untrusted(mut self) -> Self {
        self.is_trusted = false;
        self
    }

    /// Returns the trust as if `work` is the current directory.
    pub(crate) fn trust(&self) -> WorkspaceTrust {
        let environment = Environment::from_pairs(self.variables.clone());
        WorkspaceTrust::new(&environment, Some(&self.path("work")))
    }

    pub(crate) fn loader(&self) -> Loader {
        let environment = Environment::from_pairs(self.variables.clone());
        let trust = self.trust();
        let mut report = trust.inspect(&self.path("work"));
        if self.is_trusted && !report.items.is_empty() {
            trust.remember(&mut report, true).unwrap();
        }
        let mut loader = Loader::new(environment)
            .workspace(trust, report)
            .redactor(&self.redactor)
            .sections(sample::sections());
        for (key, value) in &self.flags {
            let key = Named(bub_settings::SettingSpec::dynamic(
                key,
                bub_settings::ValueKind::Text,
                "",
            ));
            loader = loader.flag(&key, &format!("--{}", key.0.key), value);
        }
        loader
    }

    pub(crate) fn load(&self) -> Settings {
        self.loader().load().unwrap()
    }

    /// Returns the one-line error without the temporary directory.
    pub(crate) fn error(&self) -> String {
        let error = self.loader().load().unwrap_err();
        self.shorten(&error.to_string())
    }

    pub(crate) fn problems(&self) -> Vec<SettingsError> {
        self.loader().load_lenient().1
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.load()
            .warnings()
            .iter()
            .map(|warning| self.shorten(&warning.to_string()))
            .collect()
    }

    pub(crate) fn shorten(&self, text: &str) -> String {
        let prefix = format!("{}/", self.directory.path().display());
        assert!(!text.contains('\n'), "more than one line: {text:?}");
        text.replace(&prefix, "")
    }

    pub(crate) fn user_home(&self) -> PathBuf {
        self.path("user")
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }
}

/// A key with only a name, to set flags.
struct Named(bub_settings::SettingSpec);

impl AnySetting for Named {
    fn setting(&self) -> &bub_settings::SettingSpec {
        &self.0
    }

    fn default_value(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}
