//! Settings for tests, in temporary directories. The feature `testing` enables this module.
#![expect(
    clippy::unwrap_used,
    reason = "a test stops at the first surprise; test code for other crates"
)]

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    AnySetting, Environment, Loader, Redactor, Section, SettingSpec, Settings, SettingsError,
    ValueKind, WorkspaceTrust,
};

/// Loads settings from these variables and from the home that they name. No other variable of the process is read.
///
/// # Panics
///
/// Panics if the settings are invalid.
pub fn load<N: Into<String>, V: Into<OsString>>(
    variables: impl IntoIterator<Item = (N, V)>,
    sections: impl IntoIterator<Item = Section>,
) -> Settings {
    let loader = Loader::new(Environment::from_pairs(variables));
    loader.sections(sections).load().unwrap()
}

/// A user's home, a workspace and an environment, all in a temporary directory. The home of bub is `user/.bub`, the
/// workspace is `work`, and `HOME` is the only variable.
pub struct SettingsFixture {
    directory: TempDir,
    variables: Vec<(String, OsString)>,
    flags: Vec<(String, String)>,
    sections: Vec<Section>,
    is_trusted: bool,
    /// The redactor that knows the secrets of the settings.
    pub redactor: Redactor,
}

impl SettingsFixture {
    /// Creates the empty directories. The settings are those of `sections`.
    pub fn new(sections: impl IntoIterator<Item = Section>) -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir_all(directory.path().join("user/.bub")).unwrap();
        fs::create_dir(directory.path().join("work")).unwrap();
        let home = directory.path().join("user").into_os_string();
        Self {
            directory,
            variables: vec![("HOME".to_owned(), home)],
            flags: Vec::new(),
            sections: sections.into_iter().collect(),
            is_trusted: true,
            redactor: Redactor::new(),
        }
    }

    /// Returns a path in the temporary directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// Writes a file in the temporary directory and creates its directories.
    #[must_use]
    pub fn file(self, relative: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// Writes the config file.
    #[must_use]
    pub fn config(self, yaml: impl AsRef<[u8]>) -> Self {
        self.file("user/.bub/config.yml", yaml)
    }

    /// Writes the `.env` file of the workspace.
    #[must_use]
    pub fn dotenv(self, text: impl AsRef<[u8]>) -> Self {
        self.file("work/.env", text)
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Sets a setting with a flag.
    #[must_use]
    pub fn flag(mut self, key: &str, value: &str) -> Self {
        self.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Trusts the workspace. This is the default.
    #[must_use]
    pub fn trusted(mut self) -> Self {
        self.is_trusted = true;
        self
    }

    /// Does not trust the workspace.
    #[must_use]
    pub fn untrusted(mut self) -> Self {
        self.is_trusted = false;
        self
    }

    /// Returns the trust as if `work` is the current directory.
    pub fn trust(&self) -> WorkspaceTrust {
        let environment = Environment::from_pairs(self.variables.clone());
        WorkspaceTrust::new(&environment, Some(&self.path("work")))
    }

    /// Returns the loader of the settings.
    pub fn loader(&self) -> Loader {
        let trust = self.trust();
        let mut report = trust.inspect(&self.path("work"));
        if report.is_trusted() != self.is_trusted && !report.items.is_empty() {
            trust.remember(&mut report, self.is_trusted).unwrap();
        }
        let mut loader = Loader::new(Environment::from_pairs(self.variables.clone()))
            .workspace(trust, report)
            .redactor(&self.redactor)
            .sections(self.sections.clone());
        for (key, value) in &self.flags {
            let key = NamedSetting(SettingSpec::dynamic(key, ValueKind::Text, ""));
            loader = loader.flag(&key, &format!("--{}", key.0.key), value);
        }
        loader
    }

    /// Loads the settings, which must be valid.
    pub fn load(&self) -> Settings {
        self.loader().load().unwrap()
    }

    /// Returns the error of invalid settings as [`shorten`](Self::shorten) does.
    pub fn error(&self) -> String {
        self.shorten(self.loader().load().unwrap_err())
    }

    /// Returns all problems of the settings.
    pub fn problems(&self) -> Vec<SettingsError> {
        self.loader().load_lenient().1
    }

    /// Returns the warnings as [`shorten`](Self::shorten) does.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.load().warnings().into_iter();
        warnings.map(|warning| self.shorten(warning)).collect()
    }

    /// Returns a text without the path of the temporary directory.
    ///
    /// # Panics
    ///
    /// Panics if the text has more than one line.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "tests pass errors that they need no longer"
    )]
    pub fn shorten(&self, text: impl ToString) -> String {
        let text = text.to_string();
        assert!(!text.contains('\n'), "more than one line: {text:?}");
        text.replace(&format!("{}/", self.root().display()), "")
    }

    /// Returns the home of the user.
    pub fn user_home(&self) -> PathBuf {
        self.path("user")
    }

    /// Returns the temporary directory.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }
}

/// A setting with only a name, to set flags.
struct NamedSetting(SettingSpec);

impl AnySetting for NamedSetting {
    fn setting(&self) -> &SettingSpec {
        &self.0
    }

    fn default_value(&self) -> Value {
        Value::Null
    }
}
