//! The files that tools may use: they obey the sandbox profile of the sender, as commands do.
//!
//! * [`FileAccess`] decides whether the sender of a turn may use a file.
//! * `keys` recognizes files that members do not read.
//! * `resolve` resolves the symbolic links of a path.
//! * `tree` lists what is below a directory.
//! * `open` opens the file at the resolved path, so that nothing can change between the decision and the use.

mod keys;
mod open;
mod resolve;
mod tree;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_kernel::{
    Error, ErrorKind, ExecutionEnvironment, Result, Role, Sender, SessionId, ToolCaller,
    ToolContext, ToolSpec,
};
use bub_sandbox::{Confinement, PathAccess, SandboxProfile, is_below};
use bub_settings::Settings;
use serde_json::{Map, Value};

use keys::is_hidden_from_members;
pub use open::AllowedFile;
pub(crate) use open::file_error;
pub(crate) use tree::{AllowedTree, TreeEntry, WalkLimits, WalkOutcome, shown_path};

use crate::{
    code_mode::STUB_DIRECTORY, policy::ContentLimits, sandbox::Sandbox, settings::FS_CONFINE,
    skills::Skills,
};

/// Directory for bub's data in the user's home directory, if `BUB_HOME` does not name another one.
const DEFAULT_HOME: &str = ".bub";
/// Temporary directory of a check that opens nothing.
const UNUSED_TEMP: &str = "/tmp";
/// What a tool does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// Reads it.
    Read,
    /// Changes an existing file.
    Change,
    /// Writes it, and creates it and its directories if they are missing.
    Create,
}

/// Why a file may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRefusal {
    /// The file is outside the workspace, and the sender may use only files in it.
    OutsideWorkspace,
    /// The sandbox profile does not allow the file.
    OutsideProfile(SandboxProfile),
    /// The file can be read, and not changed: it decides what programs outside the sandbox do.
    Protected,
    /// The file belongs to bub, or is an alias of such a file.
    Home,
    /// The file shows the memory or environment of a process.
    Process,
    /// Users who are not owners do not see the file.
    Hidden,
}

impl FileRefusal {
    /// Returns whether an owner may allow the use.
    pub fn can_ask(self) -> bool {
        matches!(self, Self::OutsideProfile(_) | Self::Protected)
    }
}

impl fmt::Display for FileRefusal {
    // The text contains no path, because it is also shown to users who must not know the path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideWorkspace => f.write_str(
                "the path is outside the workspace; only files in the workspace are allowed",
            ),
            Self::OutsideProfile(profile) => write!(
                f,
                "the sandbox (profile `{profile}`) does not allow this path; use files in the workspace or in /tmp"
            ),
            Self::Protected => f.write_str(
                "the file is protected: it decides what programs outside the sandbox do; ask the user to change it",
            ),
            Self::Home => f.write_str(
                "the path belongs to bub itself; no tool can use it, and its owner uses commands such as `bub config`",
            ),
            Self::Process => {
                f.write_str("the path belongs to a process; use a command such as `ps` instead")
            }
            Self::Hidden => f.write_str(
                "the file is visible only to owners: its name starts with a dot, or it may contain keys",
            ),
        }
    }
}

/// Why a file could not be opened.
#[derive(Debug)]
pub(crate) enum FileError {
    Refused(FileRefusal),
    Failed(Error),
}

impl From<Error> for FileError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Refused(refusal) => Self::new(ErrorKind::Tool, refusal.to_string()),
            FileError::Failed(error) => error,
        }
    }
}

/// Decides which files the tools may use, and opens them.
pub struct FileAccess {
    settings: Arc<Settings>,
    skills: Arc<Skills>,
    sandbox: Arc<Sandbox>,
    content: ContentLimits,
    /// Whether owners, too, may use only files in the workspace.
    confine: bool,
}

/// Whose files a tool wants to use.
pub(crate) struct FileScope<'a> {
    pub(crate) sender: &'a Sender,
    /// Whose temporary directory is used. `None` if nothing is opened.
    pub(crate) session: Option<&'a SessionId>,
    pub(crate) workspace: Option<&'a Path>,
    pub(crate) profile: SandboxProfile,
}

impl FileAccess {
    /// Creates the access that the settings describe.
    pub fn new(settings: &Arc<Settings>) -> Self {
        let skills = Arc::new(Skills::new(settings));
        let sandbox = Sandbox::new(Arc::clone(settings), Arc::clone(&skills), None);
        Self::with_sandbox(Arc::clone(settings), skills, Arc::new(sandbox))
    }

    /// Creates the access with the skills and the sandbox of an agent.
    pub(crate) fn with_sandbox(
        settings: Arc<Settings>,
        skills: Arc<Skills>,
        sandbox: Arc<Sandbox>,
    ) -> Self {
        Self {
            content: ContentLimits::new(&settings),
            confine: settings.get(&FS_CONFINE),
            settings,
            skills,
            sandbox,
        }
    }

    /// Returns whether the sender may use only files in the workspace. This is always the case for senders who are not
    /// owners.
    pub fn is_confined(&self, sender: &Sender) -> bool {
        self.confine || sender.role != Role::Owner
    }

    /// Finds the file that `path` names in a tool call: an absolute path, one relative to the workspace, or one that
    /// starts with `~/`. Creates missing directories for [`FileUse::Create`].
    ///
    /// # Errors
    ///
    /// Fails if the sender may not use the file, or if its directory cannot be opened.
    pub fn find(&self, context: &ToolContext, path: &str, usage: FileUse) -> Result<AllowedFile> {
        let profile = self.profile(context);
        Ok(self.find_in(profile, context, path, usage)?)
    }

    /// Returns why the sender may not use the file that a call of the model names, or `None` if the sender may, or if
    /// the tool uses no files. The file is in the workspace of this machine or in an environment. Creates nothing.
    pub fn refusal_reason(
        &self,
        sender: &Sender,
        (workspace, environment): (Option<&Path>, Option<&dyn ExecutionEnvironment>),
        tool: &ToolSpec,
        arguments: &Map<String, Value>,
    ) -> Option<String> {
        let path = arguments.get("path").and_then(Value::as_str);
        let path = path.filter(|_| tool.name.starts_with("fs."))?;
        let usage = if tool.read_only {
            FileUse::Read
        } else {
            FileUse::Change
        };
        let profile = self.sandbox.profile(sender, ToolCaller::Model);
        let scope = FileScope {
            sender,
            session: None,
            workspace,
            profile,
        };
        let resolve = || match environment {
            Some(environment) => {
                let target = (path, usage);
                let path = self.environment_path(environment.workspace(), sender, profile, target);
                path.map(PathBuf::from)
            }
            None => self
                .rules(&scope)?
                .resolve(self.absolute_path(&scope, path)?, usage),
        };
        let error = Error::from(resolve().err()?);
        Some(error.message().to_owned())
    }

    /// Returns the absolute path of a file in an environment with this workspace, if the sender may use it. Only the path is
    /// checked: bub does not know the links in an environment.
    pub(crate) fn environment_path(
        &self,
        workspace: Option<&str>,
        sender: &Sender,
        profile: SandboxProfile,
        (path, usage): (&str, FileUse),
    ) -> Result<String, FileError> {
        let workspace = workspace.map(Path::new);
        let path = resolve::absolute_path(path, workspace, None)?;
        let path = resolve::normalize(&path);
        let inside = workspace.and_then(|workspace| path.strip_prefix(workspace).ok());
        let refusal = match inside {
            None if self.is_confined(sender) => Some(FileRefusal::OutsideWorkspace),
            Some(inside) if sender.role != Role::Owner && is_hidden_from_members(inside) => {
                Some(FileRefusal::Hidden)
            }
            _ if profile == SandboxProfile::ReadOnly && usage != FileUse::Read => {
                Some(FileRefusal::OutsideProfile(profile))
            }
            _ => None,
        };
        match refusal {
            Some(refusal) => Err(FileError::Refused(refusal)),
            None => Ok(path.to_string_lossy().into_owned()),
        }
    }

    /// Fails if a text that was read in an environment contains a private key and the sender is not an owner.
    pub(crate) fn check_text(&self, context: &ToolContext, text: &str) -> Result<()> {
        let sender = self.content.effective_sender(&context.turn, context.caller);
        if sender.role != Role::Owner && keys::contains_private_key(text.as_bytes()) {
            return Err(FileError::Refused(FileRefusal::Hidden).into());
        }
        Ok(())
    }

    /// Returns the profile that applies to a call.
    pub(crate) fn profile(&self, context: &ToolContext) -> SandboxProfile {
        let sender = self.content.effective_sender(&context.turn, context.caller);
        self.sandbox.profile(&sender, context.caller)
    }

    /// Finds a file as [`Self::find`] does, in another profile.
    pub(crate) fn find_in(
        &self,
        profile: SandboxProfile,
        context: &ToolContext,
        path: &str,
        usage: FileUse,
    ) -> Result<AllowedFile, FileError> {
        let tree = self.find_tree(profile, context, path, usage)?;
        Ok(tree.file)
    }

    /// Finds a file or directory that a tool may use with everything below it.
    pub(crate) fn find_tree(
        &self,
        profile: SandboxProfile,
        context: &ToolContext,
        path: &str,
        usage: FileUse,
    ) -> Result<AllowedTree, FileError> {
        let workspace = crate::workspace(context.state());
        let sender = self.content.effective_sender(&context.turn, context.caller);
        let scope = FileScope {
            sender: &sender,
            session: Some(context.turn.session_id()),
            workspace: workspace.as_deref(),
            profile,
        };
        let path = self.absolute_path(&scope, path)?;
        let rules = self.rules(&scope)?;
        let path = rules.resolve(path, usage)?;
        let root = rules.workspace.as_deref();
        let root = root.filter(|root| path.starts_with(root) && path != *root);
        let private = rules.private.iter().filter(|root| !path.starts_with(root));
        let private: Vec<_> = private
            .filter_map(|root| open::path_identity(root))
            .collect();
        let shown = match &rules.confinement {
            Some(confinement) => confinement.inside_path(&path),
            None => path.clone(),
        };
        let root = root.unwrap_or(Path::new("/"));
        let file = AllowedFile::new(root, path, shown, usage, &private)?;
        let file = file.without_keys(rules.hides_keys());
        Ok(AllowedTree {
            file,
            rules,
            private,
        })
    }

    fn absolute_path(&self, scope: &FileScope<'_>, path: &str) -> Result<PathBuf> {
        let home = self.settings.environment().user_home();
        resolve::absolute_path(path, scope.workspace, home)
    }

    fn rules(&self, scope: &FileScope<'_>) -> Result<FileRules> {
        let settings = &self.settings;
        let is_confined = self.is_confined(scope.sender);
        let is_off = scope.profile == SandboxProfile::Off;
        let workspace = scope.workspace.map(resolve::resolve_symlinks).transpose()?;
        let confinement = match &workspace {
            Some(workspace) if !is_off => {
                let (profile, sender) = (scope.profile, scope.sender);
                let sandbox = &self.sandbox;
                let confinement = match scope.session {
                    Some(session) => sandbox.confinement(profile, sender, session, workspace),
                    None => sandbox.confinement_with_temp(
                        profile,
                        sender,
                        UNUSED_TEMP.as_ref(),
                        workspace,
                    ),
                };
                Some(confinement?)
            }
            None if !is_off || is_confined => {
                return Err(Error::invalid_input(
                    "cannot access files: only files in the workspace are allowed, but no workspace is set; start bub with `-w DIR`",
                ));
            }
            _ => None,
        };
        let default_home = settings.environment().user_home();
        let default_home = default_home.map(|home| home.join(DEFAULT_HOME));
        let private = [settings.home(), settings.config_file()].map(Path::to_owned);
        let private = private.into_iter().chain(default_home);
        let stubs = settings.home().join(STUB_DIRECTORY);
        let readable = self.skills.roots_outside_workspace().into_iter();
        let readable = readable.chain([stubs]);
        Ok(FileRules {
            workspace,
            private: private.map(|path| canonical(&path)).collect(),
            readable: readable.map(|path| canonical(&path)).collect(),
            confinement,
            profile: scope.profile,
            role: scope.sender.role,
            is_confined,
        })
    }
}

impl fmt::Debug for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileAccess").finish_non_exhaustive()
    }
}

/// The rules for the files of one sender. All paths are without symbolic links.
struct FileRules {
    workspace: Option<PathBuf>,
    /// bub's home, the directory that it would have by default, and the config file.
    private: Vec<PathBuf>,
    /// Directories with skills, and with the stubs of code mode.
    readable: Vec<PathBuf>,
    /// What a command could reach. `None` if the profile is off.
    confinement: Option<Confinement>,
    profile: SandboxProfile,
    role: Role,
    /// Whether only files in the workspace are allowed.
    is_confined: bool,
}

impl FileRules {
    /// Returns whether the sender may not read private keys.
    fn hides_keys(&self) -> bool {
        self.role != Role::Owner
    }

    /// Returns the path without symbolic links, if the file there may be used.
    fn resolve(&self, path: PathBuf, usage: FileUse) -> Result<PathBuf, FileError> {
        let path = match &self.confinement {
            Some(confinement) if !self.is_confined => confinement.outside_path(&path),
            _ => path,
        };
        let path = resolve::resolve_symlinks(&path)?;
        match self.refusal(&path, usage) {
            Some(refusal) => Err(FileError::Refused(refusal)),
            None => Ok(path),
        }
    }

    /// Returns why the file at a path may not be used.
    fn refusal(&self, path: &Path, usage: FileUse) -> Option<FileRefusal> {
        let workspace = self.workspace.as_deref();
        let inside = workspace.and_then(|workspace| path.strip_prefix(workspace).ok());
        match (inside, &self.confinement) {
            (None, _) if self.is_confined => Some(FileRefusal::OutsideWorkspace),
            _ if self.is_private(path, usage) => Some(FileRefusal::Home),
            _ if is_process_path(path) => Some(FileRefusal::Process),
            (Some(inside), _) if self.role != Role::Owner && is_hidden_from_members(inside) => {
                Some(FileRefusal::Hidden)
            }
            (_, None) => None,
            (inside, Some(confinement)) => match (confinement.access(path), usage) {
                (PathAccess::Write | PathAccess::Read, FileUse::Read) => None,
                (PathAccess::Write, _) if confinement.is_protected(path) => {
                    Some(FileRefusal::Protected)
                }
                (PathAccess::Write, _) => None,
                (PathAccess::Read, _) if inside.is_some() && confinement.can_write => {
                    Some(FileRefusal::Protected)
                }
                _ => Some(FileRefusal::OutsideProfile(self.profile)),
            },
        }
    }

    /// Returns whether a path belongs to bub. Skills, the workspace and the temporary directory may be below its home.
    fn is_private(&self, path: &Path, usage: FileUse) -> bool {
        let temp = self
            .confinement
            .as_ref()
            .map(|confinement| &confinement.temp);
        let readable = self.readable.iter().filter(|_| usage == FileUse::Read);
        let allowed = self.workspace.iter().chain(temp).chain(readable);
        let allowed: Vec<_> = allowed.filter(|root| path.starts_with(root)).collect();
        let mut private = self.private.iter().filter(|root| is_below(path, root));
        private.any(|root| {
            !allowed
                .iter()
                .any(|part| *part != root && part.starts_with(root))
        })
    }
}

/// Returns whether a path is in the directory of a process in `/proc`: its memory and environment hold secrets.
fn is_process_path(path: &Path) -> bool {
    let mut parts = path.strip_prefix("/proc").into_iter().flatten();
    let number = parts.next().and_then(|part| part.to_str());
    number.is_some_and(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn canonical(path: &Path) -> PathBuf {
    resolve::resolve_symlinks(path).unwrap_or_else(|_| path.to_owned())
}
