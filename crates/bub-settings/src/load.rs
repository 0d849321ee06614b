//! Reads the sources of settings: flags, environment, `.env` and config file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::node::{Node, NodeData, NodeMap};
use crate::settings::Settings;
use crate::sources::{DotEnvFile, Flag, Sources};
use crate::spec::{AnySetting, Section};
use crate::{
    Environment, Redactor, SettingSource, SettingsError, SettingsWarning, dotenv, files, keys,
    validate, yaml,
};

/// Whether a workspace may set trusted settings.
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
pub struct Loader {
    environment: Environment,
    workspace: Option<(PathBuf, WorkspaceTrust)>,
    flags: Vec<Flag>,
    sections: Vec<Section>,
    redactor: Redactor,
}

impl Loader {
    /// Creates a loader with an environment and the settings of this crate.
    pub fn new(environment: Environment) -> Self {
        Self {
            environment,
            workspace: None,
            flags: Vec::new(),
            sections: Vec::new(),
            redactor: Redactor::new(),
        }
    }

    /// Adds the `.env` of this directory as a source.
    #[must_use]
    pub fn workspace(mut self, directory: impl Into<PathBuf>, trust: WorkspaceTrust) -> Self {
        self.workspace = Some((directory.into(), trust));
        self
    }

    /// Sets a setting from the command line; `flag` is the user's spelling (`--model`).
    #[must_use]
    pub fn flag(mut self, key: &dyn AnySetting, flag: &str, value: &str) -> Self {
        let key = key.setting().key().to_owned();
        self.flags.push(Flag {
            key,
            name: flag.into(),
            value: value.to_owned(),
        });
        self
    }

    /// Adds a section. Use [`Settings::register`] after loading.
    ///
    /// A section with an empty name adds its keys to the root. Several sections may do so.
    #[must_use]
    pub fn section(self, section: Section) -> Self {
        self.sections([section])
    }

    /// Adds the sections of a crate; see [`section`](Self::section).
    #[must_use]
    pub fn sections(mut self, sections: impl IntoIterator<Item = Section>) -> Self {
        self.sections.extend(sections);
        self
    }

    /// Registers secrets with this redactor instead of a new one.
    #[must_use]
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
        let user_home = self.environment.user_home().map(Path::to_owned);
        let mut sources = Sources {
            environment: self.environment,
            dotenv: None,
            config: None,
            flags: self.flags,
        };
        // Skip a workspace that is not a directory; the code that needs it reports the error.
        if let Some((directory, trust)) = self.workspace.filter(|(directory, _)| directory.is_dir())
        {
            match read_dotenv(&directory, trust, &sources.environment, &mut warnings) {
                Ok(file) => sources.dotenv = file,
                Err(error) => warnings.push(SettingsWarning::DotEnvFile {
                    problem: error.to_string(),
                }),
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
        settings.sources.config = config.map_err(|error| problems.push(error)).ok().flatten();
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
    let origin = |line, name: &str| SettingSource::DotEnv {
        file: file.clone(),
        line,
        name: name.into(),
    };
    let mut lookup = |name: &str, line| {
        // `BUB_MODEL=x:${AWS_SECRET_ACCESS_KEY}` in a cloned repository would leak the key.
        if trust == WorkspaceTrust::Untrusted && !is_never_secret(name) {
            warnings.push(SettingsWarning::SecretReference {
                origin: origin(line, ""),
                name: name.to_owned(),
            });
            return None;
        }
        environment.get(name)?.to_str().map(str::to_owned)
    };
    let parsed = dotenv::parse(&text, &mut lookup);
    let bad = parsed.bad_lines.into_iter();
    let bad = bad.map(|(line, problem)| SettingsWarning::DotEnvSyntax {
        origin: origin(line, ""),
        problem,
    });
    warnings.extend(bad);
    Ok(Some(DotEnvFile {
        bindings: parsed.bindings,
        trust,
        file,
    }))
}

/// Returns whether the value of a variable is never a secret. For other names this is unknown.
fn is_never_secret(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        "HOME", "USER", "LOGNAME", "PWD", "SHELL", "LANG", "TERM", "TMPDIR", "HOSTNAME", "TZ",
        "EDITOR",
    ];
    NAMES.contains(&name) || name.starts_with("XDG_") || name.starts_with("LC_")
}

/// Returns the home directory. It is needed to find the config file, so the config file cannot set
/// it.
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
) -> Result<Option<NodeMap>, SettingsError> {
    let shared: Arc<Path> = file.into();
    let origin = move |line| SettingSource::Config {
        file: shared.clone(),
        line,
    };
    let document = yaml::parse(text, &origin).map_err(|problem| SettingsError::Syntax {
        file: file.to_owned(),
        line: problem.line,
        column: problem.column,
        problem: problem.text,
    })?;
    warnings.extend(
        document
            .duplicates
            .into_iter()
            .map(|(name, origin)| SettingsWarning::Duplicate { origin, name }),
    );
    let not_a_map = |origin, found| {
        let line = if let SettingSource::Config { line, .. } = origin {
            line
        } else {
            1
        };
        SettingsError::NotAMap {
            file: file.to_owned(),
            line,
            found,
        }
    };
    match document.root {
        None => Ok(None),
        Some(Node {
            data: NodeData::Map(map),
            ..
        }) => Ok(Some(map)),
        Some(Node {
            data: NodeData::List(_),
            origin,
        }) => Err(not_a_map(origin, "a list")),
        Some(Node {
            data: NodeData::Scalar(_),
            origin,
        }) => Err(not_a_map(origin, "a single value")),
    }
}
