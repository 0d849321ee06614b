//! Trust in a workspace: which of its files change how bub works, and what the user decided about them.
//!
//! A workspace can come from anyone, for example as a cloned repository. Its `.env`, skills, MCP servers and plugins
//! have an effect only if the user trusted exactly their present content. Its `AGENTS.md` is always read.
//!
//! * `digest` reads files and directories with limits.
//! * `store` keeps the decisions in `trust.json` in bub's home.

mod digest;
mod store;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use self::digest::DigestReader;
pub use self::store::{TrustRecord, TrustedItem};
use crate::secret::is_sensitive_name;
use crate::sources::{DotEnvFile, Sources};
use crate::{Environment, Redactor, SettingSource, SettingsWarning, display, dotenv, files, load};

/// Maximum bytes read from an `AGENTS.md`; the rest is ignored.
pub const MAX_INSTRUCTIONS_BYTES: u64 = 256 * 1024;

/// The file with settings of a workspace.
const DOTENV_FILE: &str = ".env";

/// The other files and directories in a workspace that change how bub works.
const WORKSPACE_PATHS: [(&str, TrustItemKind); 5] = [
    (".agents/skills", TrustItemKind::Skills),
    (".agent/skills", TrustItemKind::Skills),
    ("mcp.json", TrustItemKind::McpServers),
    (".bub/plugins", TrustItemKind::Plugins),
    ("AGENTS.md", TrustItemKind::Instructions),
];

/// What a file or directory of a workspace changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TrustItemKind {
    /// A `.env` with settings and keys.
    Settings,
    /// A directory of skills.
    Skills,
    /// A list of MCP servers.
    McpServers,
    /// A directory of plugins.
    Plugins,
    /// Instructions for the model. They are read from untrusted workspaces, too, but not trusted.
    Instructions,
}

impl TrustItemKind {
    /// Returns what trust in the file or directory enables.
    pub fn effect(self) -> &'static str {
        match self {
            Self::Settings => "settings and keys",
            Self::Skills => "skills",
            Self::McpServers => "MCP servers, which bub starts",
            Self::Plugins => "plugins, which bub starts",
            Self::Instructions => "instructions for the model, read in any case",
        }
    }
}

/// A file or directory of a workspace that changes how bub works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TrustItem {
    /// What it changes.
    pub kind: TrustItemKind,
    /// The path without symbolic links.
    pub path: PathBuf,
    /// SHA-256 of the content, or why the content cannot be trusted.
    pub digest: Result<String, String>,
    /// Names of what is inside: variables of a `.env`, or entries of a directory.
    pub names: Vec<String>,
    /// All files and directories that were read.
    pub files: Vec<PathBuf>,
    /// Whether the user trusted this content.
    pub is_trusted: bool,
}

/// The files of a workspace that change how bub works, and whether the user trusts them.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TrustReport {
    /// The workspace, without symbolic links.
    pub workspace: PathBuf,
    /// Everything that trust is about. Empty if the workspace changes nothing.
    pub items: Vec<TrustItem>,
    /// Whether the user declined to trust exactly this content.
    pub is_declined: bool,
}

impl TrustReport {
    /// Returns whether the files of the workspace take effect. A workspace without such files is trusted.
    pub fn is_trusted(&self) -> bool {
        let mut items = self.items.iter();
        items.all(|item| item.is_trusted || item.kind == TrustItemKind::Instructions)
    }

    /// Returns the items that have no effect. If one item is not trusted, this is all items except instructions.
    pub fn ignored_items(&self) -> impl Iterator<Item = &TrustItem> {
        let items = self.items.iter().filter(|_| !self.is_trusted());
        items.filter(|item| item.kind != TrustItemKind::Instructions)
    }

    /// Returns whether the user should be asked about the workspace: something in it can be trusted, is not trusted,
    /// and was not declined.
    pub fn needs_answer(&self) -> bool {
        !self.is_declined
            && self.items.iter().any(|item| !item.is_trusted)
            && self.items.iter().all(|item| item.digest.is_ok())
    }

    /// Returns the ignored items as text, such as `.env, .agents/skills`.
    pub fn ignored_text(&self) -> String {
        let items = self.ignored_items().map(|item| {
            let path = self.relative_path(item).display();
            match &item.digest {
                Ok(_) => path.to_string(),
                Err(reason) => format!("{path} ({reason})"),
            }
        });
        items.collect::<Vec<_>>().join(", ")
    }

    /// Returns the path of an item in the workspace. A path outside the workspace is absolute.
    pub fn relative_path<'a>(&self, item: &'a TrustItem) -> &'a Path {
        let path = item.path.strip_prefix(&self.workspace);
        path.unwrap_or(&item.path)
    }
}

/// Finds the files that need trust, and stores the user's decisions.
#[derive(Clone, Default)]
pub struct WorkspaceTrust {
    /// `trust.json`. `None` if bub's home is unknown.
    store: Option<PathBuf>,
    /// The user's home directory and bub's home. Their files belong to the user and need no trust.
    own_directories: Vec<PathBuf>,
    dotenv: Option<FoundDotEnv>,
    /// Why the nearest `.env` cannot be read.
    dotenv_problem: Option<String>,
}

/// The nearest `.env`. Its text is kept, so that bub uses exactly what has the digest.
#[derive(Clone)]
struct FoundDotEnv {
    item: TrustItem,
    path: PathBuf,
    text: String,
    /// Whether it is in the user's home directory or in bub's home.
    is_own: bool,
}

impl WorkspaceTrust {
    /// Finds the nearest `.env`, from `current_dir` upward. `None` searches none.
    ///
    /// The decisions are in the home that the environment sets, because a `.env` must not choose them.
    pub fn new(environment: &Environment, current_dir: Option<&Path>) -> Self {
        let home = load::find_home(&Sources::new(environment.clone()));
        let directories = [environment.user_home().map(Path::to_owned), home.clone()];
        let own = directories.into_iter().flatten();
        let mut trust = Self {
            store: home.map(|home| home.join("trust.json")),
            own_directories: own.filter_map(|path| path.canonicalize().ok()).collect(),
            ..Self::default()
        };
        if let Some(path) = current_dir.and_then(find_dotenv) {
            match files::read_text_file(&path) {
                Ok(text) => trust.add_dotenv(path, text.unwrap_or_default()),
                Err(error) => trust.dotenv_problem = Some(error.to_string()),
            }
        }
        trust
    }

    fn add_dotenv(&mut self, path: PathBuf, text: String) {
        let bindings = dotenv::parse(&text, &|_| None).bindings;
        if bindings.is_empty() {
            return;
        }
        let target = path.canonicalize().unwrap_or_else(|_| path.clone());
        self.dotenv = Some(FoundDotEnv {
            is_own: self.is_own(&target, DOTENV_FILE),
            item: TrustItem {
                kind: TrustItemKind::Settings,
                digest: Ok(digest::digest_bytes(text.as_bytes())),
                names: bindings.into_iter().map(|binding| binding.name).collect(),
                files: vec![target.clone()],
                path: target,
                is_trusted: false,
            },
            path,
            text,
        });
    }

    /// Reads what needs trust in a workspace, and the user's decisions.
    pub fn inspect(&self, workspace: &Path) -> TrustReport {
        let absolute = || std::path::absolute(workspace).unwrap_or_else(|_| workspace.to_owned());
        let workspace = workspace.canonicalize().unwrap_or_else(|_| absolute());
        let mut reader = DigestReader::default();
        let dotenv = self.dotenv.iter().filter(|dotenv| !dotenv.is_own);
        let mut items: Vec<_> = dotenv.map(|dotenv| dotenv.item.clone()).collect();
        for (relative, kind) in WORKSPACE_PATHS {
            let Ok(path) = workspace.join(relative).canonicalize() else {
                continue;
            };
            // bub reads no instructions outside the workspace.
            let is_read = kind != TrustItemKind::Instructions || path.starts_with(&workspace);
            let is_known = items.iter().any(|item| item.path == path);
            if is_read && !is_known && !self.is_own(&path, relative) {
                items.extend(reader.read_item(kind, path));
            }
        }
        let mut report = TrustReport {
            workspace,
            items,
            is_declined: false,
        };
        if !report.items.is_empty() {
            // Without readable decisions, nothing is trusted.
            report.apply(&self.records().unwrap_or_default());
        }
        report
    }

    /// Returns whether the user trusted these instructions, which were read from `path`. `content` has at most
    /// [`MAX_INSTRUCTIONS_BYTES`].
    pub fn are_instructions_trusted(&self, path: &Path, content: &[u8]) -> bool {
        let digest = Ok(digest::digest_bytes(content));
        self.is_own(path, "AGENTS.md")
            || store::is_trusted(&self.records().unwrap_or_default(), path, &digest)
    }

    /// Returns the file with the decisions, if bub's home is known.
    pub fn file(&self) -> Option<&Path> {
        self.store.as_deref()
    }

    /// Reads the `.env`, if the report says that it is trusted.
    pub(crate) fn read_settings(
        &self,
        report: &TrustReport,
        environment: &Environment,
        warnings: &mut Vec<SettingsWarning>,
    ) -> Option<DotEnvFile> {
        let problem = self.dotenv_problem.clone();
        warnings.extend(problem.map(|problem| SettingsWarning::DotEnvFile { problem }));
        let dotenv = self.dotenv.as_ref();
        let dotenv = dotenv.filter(|dotenv| dotenv.is_own || report.is_trusted())?;
        let file: Arc<Path> = dotenv.path.as_path().into();
        let lookup = |name: &str| {
            let mut variables = environment.iter();
            let (_, value) = variables.find(|(variable, _)| *variable == name)?;
            value.to_str().map(str::to_owned)
        };
        let parsed = dotenv::parse(&dotenv.text, &lookup);
        for (line, problem) in parsed.bad_lines {
            let (file, name) = (file.clone(), "".into());
            let origin = SettingSource::DotEnv { file, line, name };
            warnings.push(SettingsWarning::DotEnvSyntax { origin, problem });
        }
        Some(DotEnvFile {
            bindings: parsed.bindings,
            file,
        })
    }

    /// Registers the secrets in a `.env` that is not used: the agent can read the file.
    pub(crate) fn register_secrets(&self, redactor: &Redactor) {
        let text = self.dotenv.as_ref().map(|dotenv| dotenv.text.as_str());
        for binding in dotenv::parse(text.unwrap_or_default(), &|_| None).bindings {
            let value = binding.value.as_str();
            let in_url = display::url_password(value).into_iter();
            for secret in in_url.chain(display::query_secrets(value)) {
                redactor.register_text(secret);
            }
            if is_sensitive_name(&binding.name) {
                redactor.register_text(value);
                // A key for each provider is a JSON map.
                let keys = serde_json::from_str::<HashMap<String, String>>(value);
                for key in keys.unwrap_or_default().values() {
                    redactor.register_text(key);
                }
            }
        }
    }

    /// Returns whether a path is that file of the user's home directory or of bub's home.
    fn is_own(&self, path: &Path, relative: &str) -> bool {
        let mut own = self.own_directories.iter();
        own.any(|directory| directory.join(relative) == path)
    }
}

impl TrustReport {
    /// Applies the decisions to the items.
    fn apply(&mut self, records: &[TrustRecord]) {
        for item in &mut self.items {
            item.is_trusted = store::is_trusted(records, &item.path, &item.digest);
        }
        self.is_declined = records.iter().any(|record| record.declines(self));
    }
}

/// Returns the nearest regular file `.env`, from a directory upward, as python-dotenv does. A directory with this name
/// is often a Python environment.
fn find_dotenv(directory: &Path) -> Option<PathBuf> {
    let directory = std::path::absolute(directory).ok()?;
    let mut files = directory.ancestors().map(|parent| parent.join(DOTENV_FILE));
    files.find(|file| file.is_file())
}
