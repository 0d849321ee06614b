//! Reads the sources of settings: flags, environment, `.env` and config file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::node::{Node, NodeData};
use crate::settings::Settings;
use crate::sources::{Flag, Sources};
use crate::spec::{AnySetting, Section};
use crate::{
    Environment, Redactor, SettingSource, SettingsError, SettingsWarning, TrustReport,
    WorkspaceTrust, files, keys, validate, yaml,
};

/// Collects the sources of settings and reads them.
///
/// ```
/// use bub_settings::{AnySetting, Environment, SettingKey, Loader, Section};
///
/// static COLOR: SettingKey<String> = SettingKey::new("shop.color", "red", "The color of the shop.");
/// static OPEN: SettingKey<bool> = SettingKey::new("open", true, "Whether the shop is open.");
/// static SHOP: &[&dyn AnySetting] = &[&COLOR];
/// static ROOT: &[&dyn AnySetting] = &[&OPEN];
///
/// let env = Environment::from_pairs([("BUB_HOME", "/nowhere"), ("bub_shop_color", "blue")]);
/// let settings = Loader::new(env)
///     .sections([Section::new("", ROOT), Section::new("shop", SHOP)])
///     .load()
///     .unwrap();
/// assert_eq!(settings.get(&COLOR), "blue");
/// assert!(settings.get(&OPEN));
/// ```
#[must_use]
pub struct Loader {
    sources: Sources,
    trust: Option<(WorkspaceTrust, TrustReport)>,
    sections: Vec<Section>,
    redactor: Redactor,
}

impl Loader {
    /// Creates a loader with an environment and the settings of this crate.
    pub fn new(environment: Environment) -> Self {
        Self {
            sources: Sources::new(environment),
            trust: None,
            sections: Vec::new(),
            redactor: Redactor::new(),
        }
    }

    /// Adds the `.env` that was found as a source, if the report of the workspace says that it is trusted.
    pub fn workspace(mut self, trust: WorkspaceTrust, report: TrustReport) -> Self {
        self.trust = Some((trust, report));
        self
    }

    /// Sets a setting from the command line; `flag` is the user's spelling (`--model`).
    pub fn flag(mut self, key: &dyn AnySetting, flag: &str, value: &str) -> Self {
        self.sources.flags.push(Flag {
            key: key.setting().key.to_string(),
            name: flag.into(),
            value: value.to_owned(),
        });
        self
    }

    /// Adds a section. To add one after loading, use [`Settings::register`].
    ///
    /// A section with an empty name adds its keys to the root. Several sections may do so.
    pub fn section(self, section: Section) -> Self {
        self.sections([section])
    }

    /// Adds the sections of a crate; see [`section`](Self::section).
    pub fn sections(mut self, sections: impl IntoIterator<Item = Section>) -> Self {
        self.sections.extend(sections);
        self
    }

    /// Registers secrets with this redactor instead of a new one.
    pub fn redactor(mut self, redactor: &Redactor) -> Self {
        self.redactor = redactor.clone();
        self
    }

    /// Reads all sources; returns the first problem as the error.
    pub fn load(self) -> Result<Settings, SettingsError> {
        let (settings, problems) = self.load_lenient();
        problems.into_iter().next().map_or(Ok(settings), Err)
    }

    /// Reads all sources and treats invalid values as not set.
    ///
    /// For commands that repair or explain a configuration, which must run with an invalid one.
    pub fn load_lenient(self) -> (Settings, Vec<SettingsError>) {
        let mut problems = Vec::new();
        let mut warnings = Vec::new();
        let mut sources = self.sources;
        let user_home = sources.environment.user_home().map(Path::to_owned);
        let without_workspace = || {
            let trust = WorkspaceTrust::new(&sources.environment, None);
            (trust, TrustReport::default())
        };
        let (trust, report) = self.trust.unwrap_or_else(without_workspace);
        sources.dotenv = trust.read_settings(&report, &sources.environment, &mut warnings);
        if sources.dotenv.is_none() {
            trust.register_secrets(&self.redactor);
        }
        let mut settings = Settings::new(sources, self.redactor, warnings);
        (settings.workspace_trust, settings.trust_report) = (trust, report);
        settings.home = find_home(&settings.sources).unwrap_or_else(|| {
            problems.push(SettingsError::NoHome);
            PathBuf::from(".bub")
        });
        let (file, text) = files::read_config_file(&settings.home, user_home.as_deref());
        let config = text.and_then(|text| match text {
            Some(text) => parse_config(&file, &text, &mut settings.warnings),
            None => Ok(None),
        });
        match config {
            Ok(config) => settings.sources.config = config,
            Err(error) => problems.push(error),
        }
        settings.config_file = file;
        settings.register_undeclared_secrets();
        let sections = keys::sections().into_iter().chain(self.sections);
        settings.add_sections(sections, &mut problems);
        problems.extend(settings.policy_typo_errors());
        (settings, problems)
    }
}

/// Returns bub's home. It is needed to find the config file, so the config file cannot set it.
pub(crate) fn find_home(sources: &Sources) -> Option<PathBuf> {
    let user_home = sources.environment.user_home();
    let layers = sources.text_layers(keys::HOME.setting());
    let set = layers.into_iter().rev().find_map(|layer| {
        let path = validate::expand_home(layer.text?.trim(), user_home)?;
        Some(path).filter(|path| !path.is_empty())
    });
    let path = match set {
        Some(path) => path,
        None => validate::expand_home(keys::HOME.default_value().as_str()?, user_home)?,
    };
    std::path::absolute(path).ok()
}

pub(crate) fn parse_config(
    file: &Path,
    text: &str,
    warnings: &mut Vec<SettingsWarning>,
) -> Result<Option<Node>, SettingsError> {
    let shared: Arc<Path> = file.into();
    let origin = move |line| SettingSource::Config {
        file: shared.clone(),
        line,
    };
    let document = yaml::parse(text, &origin).map_err(|error| error.in_file(file))?;
    for (name, origin) in document.duplicates {
        warnings.push(SettingsWarning::Duplicate { origin, name });
    }
    let Some(root) = document.root else {
        return Ok(None);
    };
    let found = match root.data {
        NodeData::Map(_) => return Ok(Some(root)),
        NodeData::List(_) => "a list",
        NodeData::Scalar(_) => "a single value",
    };
    let line = match root.origin {
        SettingSource::Config { line, .. } => line,
        _ => 1,
    };
    let file = file.to_owned();
    Err(SettingsError::NotAMap { file, line, found })
}
