//! Reads the sources of settings: flags, environment, `.env` and config file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::node::{Node, NodeData};
use crate::settings::Settings;
use crate::sources::{DotEnvFile, Flag, Sources};
use crate::spec::{AnySetting, Section};
use crate::{
    Environment, Redactor, SettingSource, SettingsError, SettingsWarning, dotenv, files, keys,
    validate, yaml,
};

/// Whether the `.env` of a workspace may set [trusted](crate::SettingSpec::trusted) settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceTrust {
    /// The user allowed the workspace to set everything.
    Trusted,
    /// A directory of unknown origin, for example a cloned repository.
    Untrusted,
}

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
    workspace: Option<(PathBuf, WorkspaceTrust)>,
    sections: Vec<Section>,
    redactor: Redactor,
}

impl Loader {
    /// Creates a loader with an environment and the settings of this crate.
    pub fn new(environment: Environment) -> Self {
        Self {
            sources: Sources {
                environment,
                dotenv: None,
                config: None,
                flags: Vec::new(),
            },
            workspace: None,
            sections: Vec::new(),
            redactor: Redactor::new(),
        }
    }

    /// Adds the `.env` of this directory as a source.
    pub fn workspace(mut self, directory: impl Into<PathBuf>, trust: WorkspaceTrust) -> Self {
        self.workspace = Some((directory.into(), trust));
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
        // Skip a workspace that is not a directory; the code that needs it reports the error.
        if let Some((directory, trust)) = self.workspace.filter(|(directory, _)| directory.is_dir())
        {
            match read_dotenv(&directory, trust, &sources.environment, &mut warnings) {
                Ok(file) => sources.dotenv = file,
                Err(error) => {
                    let problem = error.to_string();
                    warnings.push(SettingsWarning::DotEnvFile { problem });
                }
            }
        }
        let mut settings = Settings::new(sources, self.redactor, warnings);
        settings.home = find_home(&settings, user_home.as_deref()).unwrap_or_else(|| {
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

fn read_dotenv(
    directory: &Path,
    trust: WorkspaceTrust,
    environment: &Environment,
    warnings: &mut Vec<SettingsWarning>,
) -> Result<Option<DotEnvFile>, SettingsError> {
    let path = directory.join(".env");
    let Some(text) = files::read_text_file(&path)? else {
        return Ok(None);
    };
    let file: Arc<Path> = path.into();
    let line_origin = |line| SettingSource::DotEnv {
        file: file.clone(),
        line,
        name: "".into(),
    };
    let mut lookup = |name: &str, line| {
        // `BUB_MODEL=x:${AWS_SECRET_ACCESS_KEY}` in a cloned repository would leak the key.
        if trust == WorkspaceTrust::Untrusted && !is_never_secret(name) {
            let (origin, name) = (line_origin(line), name.to_owned());
            warnings.push(SettingsWarning::SecretReference { origin, name });
            return None;
        }
        environment.get(name)?.to_str().map(str::to_owned)
    };
    let parsed = dotenv::parse(&text, &mut lookup);
    for (line, problem) in parsed.bad_lines {
        let origin = line_origin(line);
        warnings.push(SettingsWarning::DotEnvSyntax { origin, problem });
    }
    Ok(Some(DotEnvFile {
        bindings: parsed.bindings,
        trust,
        file,
    }))
}

/// Returns whether a variable is known to hold no secret, such as `HOME`. Any other variable may
/// hold one.
pub(crate) fn is_never_secret(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        "HOME", "USER", "LOGNAME", "PWD", "SHELL", "LANG", "TERM", "TMPDIR", "HOSTNAME", "TZ",
        "EDITOR",
    ];
    NAMES.contains(&name) || name.starts_with("XDG_") || name.starts_with("LC_")
}

/// Returns bub's home. It is needed to find the config file, so the config file cannot set it.
fn find_home(settings: &Settings, user_home: Option<&Path>) -> Option<PathBuf> {
    let declared = keys::HOME.setting();
    let layers = settings.sources.text_layers(declared);
    let set = layers.into_iter().rev().find_map(|layer| {
        match validate::expand_home(layer.text?.trim(), user_home)? {
            path if path.is_empty() || layer.distrusted => None,
            path => Some(path),
        }
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
