//! What a confined command may reach: the description that bub hands to the supervisor.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use crate::{
    Launcher, SUBCOMMAND,
    path_access::{SYSTEM_DIRECTORIES, TEMP_DIRECTORIES},
    protection::WORKSPACE_NAMES,
    supervisor::{CONFINE_FLAG, ENTER_FLAG},
};

/// How much of the system a command may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxProfile {
    /// The command can read the workspace and the system, and write only to its private temporary directory.
    ReadOnly,
    /// The command can also write to the workspace, except for its protected paths.
    #[default]
    Workspace,
    /// The command is not confined.
    Off,
}

impl SandboxProfile {
    /// All profiles, the strictest first.
    pub const ALL: [Self; 3] = [Self::ReadOnly, Self::Workspace, Self::Off];

    /// Returns the name of the profile in settings and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Workspace => "workspace",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for SandboxProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a profile is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSandboxProfileError(String);

impl fmt::Display for ParseSandboxProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(
            f,
            "unknown sandbox profile `{name}`: expected read-only, workspace or off"
        )
    }
}

impl std::error::Error for ParseSandboxProfileError {}

impl FromStr for SandboxProfile {
    type Err = ParseSandboxProfileError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_match = |profile: &Self| profile.name() == name;
        let found = Self::ALL.into_iter().find(is_match);
        found.ok_or_else(|| ParseSandboxProfileError(name.to_owned()))
    }
}

/// Limits on the resources of a command. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Maximum number of processes and threads of the command.
    pub max_processes: Option<u64>,
    /// Maximum bytes of memory of each process. Memory that processes share does not count.
    pub max_memory_bytes: Option<u64>,
    /// Maximum bytes of one file.
    pub max_file_bytes: Option<u64>,
}

/// What a confined command may reach. All paths are absolute and contain no symbolic links.
///
/// A command can read the system directories, the workspace and [`readable`](Self::readable) paths. The user's home
/// directory is replaced by an empty one, except for paths that are listed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The workspace. Writable unless the profile is [`SandboxProfile::ReadOnly`].
    pub workspace: PathBuf,
    /// Whether the command may write to the workspace.
    pub can_write: bool,
    /// The private temporary directory, which the command sees as `/tmp` and `/var/tmp`.
    pub temp: PathBuf,
    /// The user's home directory, if there is one.
    pub home: Option<PathBuf>,
    /// Further paths that the command can read.
    pub readable: Vec<PathBuf>,
    /// Further paths that the command can write.
    pub writable: Vec<PathBuf>,
    /// Paths that the command can read and not change, as far as they are in the workspace or lead there. The supervisor adds
    /// those that depend on what the workspace contains, such as hooks of git.
    pub protected: Vec<PathBuf>,
    /// Paths that the command cannot see, wherever they are.
    pub hidden: Vec<PathBuf>,
    /// Further configuration files of git that apply outside the sandbox. What they name in the workspace is protected.
    pub git_configs: Vec<PathBuf>,
    /// The directory through which running commands of the same workspace share what was there before the first of them.
    /// `None` for programs that run for a long time. Commands must not reach it.
    pub records: Option<PathBuf>,
    /// Whether the command can use the network. Without it, only the command's own processes are reachable, on loopback.
    pub network: bool,
    /// Limits on resources.
    pub limits: ResourceLimits,
}

/// The file with the highest process number. Since Linux 6.14, each process namespace has its own.
pub(crate) const PROCESS_LIMIT_FILE: &str = "/proc/sys/kernel/pid_max";
/// The smallest number that the kernel accepts there.
pub(crate) const MIN_PROCESS_LIMIT: u64 = 301;

/// Files and directories of the system that hold credentials. Only root can read them.
const SYSTEM_SECRETS: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
];

/// Directories and files below a home directory that hold credentials.
const SECRET_NAMES: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".password-store",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/google-chrome",
    ".config/chromium",
    ".local/share/keyrings",
    ".mozilla",
    ".codex",
    ".claude",
    ".bash_history",
    ".zsh_history",
    ".python_history",
];

/// Files below a home directory that tools need and that hold no credentials.
const HOME_CONFIG_NAMES: &[&str] = &[
    ".gitconfig",
    ".config/git/config",
    ".config/git/ignore",
    ".cargo/config.toml",
    ".cargo/env",
    ".cargo/bin",
    ".cargo/registry",
    ".cargo/git",
    ".rustup",
];

/// Variables that name directories of tools which commands need to read.
const TOOL_HOME_VARIABLES: &[&str] = &["CARGO_HOME", "RUSTUP_HOME", "NVM_DIR", "PYENV_ROOT"];

/// Variables that name configuration files of git.
const GIT_CONFIG_VARIABLES: &[&str] = &["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"];

/// Directories below a home directory in which programs often find links to a repository of configuration files.
const LINK_DIRECTORY_NAMES: &[&str] = &[".config", ".local/bin", "bin"];
/// How many levels of directories there are searched for links that lead into the workspace.
const CONFIG_LINK_DEPTH: usize = 3;
/// How many levels of a home directory are searched for them, if their names start with a period.
const HOME_LINK_DEPTH: usize = 2;

/// Directories of a home directory that contain both programs and private data. Only these parts are readable.
const SHARED_TOOL_NAMES: &[(&str, &[&str])] = &[
    (".cargo", &[]),
    (
        ".local",
        &[
            ".local/bin",
            ".local/lib",
            ".local/share/uv",
            ".local/share/pipx",
        ],
    ),
    (".config", &[]),
    ("bin", &["bin"]),
];

/// Caches below a home directory that are private to the session and writable. The rest of the home directory is
/// read-only: what a tool writes there would be lost.
const PRIVATE_CACHE_NAMES: &[&str] = &[".cache", ".gradle", ".m2", ".npm", ".yarn", "go"];

/// Caches below a home directory that tools write to, by the name of the grant. Without a grant, tools can read them.
pub const GRANTS: &[(&str, &[&str])] = &[
    (
        "cargo",
        &[
            ".cargo/registry",
            ".cargo/git",
            ".cargo/.package-cache",
            ".cargo/.package-cache-mutate",
            ".cargo/.global-cache",
        ],
    ),
    ("go", &["go/pkg", ".cache/go-build"]),
    ("npm", &[".npm", ".cache/pnpm", ".cache/yarn"]),
    ("pip", &[".cache/pip"]),
    ("uv", &[".cache/uv", ".local/share/uv"]),
];

impl Confinement {
    /// Describes a confined command in `workspace`, without network and without resource limits.
    ///
    /// Tools below `home` that are in `search_path` (the value of `PATH`) stay readable. `profile` is
    /// [`SandboxProfile::ReadOnly`] or [`SandboxProfile::Workspace`].
    pub fn new(
        profile: SandboxProfile,
        workspace: &Path,
        temp: &Path,
        home: Option<&Path>,
        search_path: &OsStr,
    ) -> Self {
        let protected = WORKSPACE_NAMES.iter().map(|name| workspace.join(name));
        // Services often have the root directory as their home. It is no place for private data.
        let home = home.filter(|home| home.parent().is_some());
        let mut readable = Vec::new();
        let mut hidden: Vec<_> = SYSTEM_SECRETS.iter().map(PathBuf::from).collect();
        if let Some(home) = home {
            readable.extend(HOME_CONFIG_NAMES.iter().map(|name| home.join(name)));
            let tools = std::env::split_paths(search_path);
            let tools = tools.flat_map(|directory| tool_paths(home, &directory));
            // What is above the workspace has other data, and what is in it stays writable.
            let is_apart =
                |path: &PathBuf| !workspace.starts_with(path) && !path.starts_with(workspace);
            readable.extend(tools.filter(is_apart));
            hidden.extend(SECRET_NAMES.iter().map(|name| home.join(name)));
        }
        Self {
            workspace: workspace.to_owned(),
            can_write: profile == SandboxProfile::Workspace,
            temp: temp.to_owned(),
            home: home.map(Path::to_owned),
            readable,
            writable: Vec::new(),
            protected: protected.collect(),
            hidden,
            git_configs: Vec::new(),
            records: None,
            network: false,
            limits: ResourceLimits::default(),
        }
    }
}

impl Confinement {
    /// Describes a confined command as [`Self::new`] does. `variable` returns the environment variables that name the home
    /// directory and the tools.
    ///
    /// # Errors
    ///
    /// Fails if a directory does not exist.
    pub fn from_environment(
        profile: SandboxProfile,
        workspace: &Path,
        temp: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> io::Result<Self> {
        let (workspace, temp) = (workspace.canonicalize()?, temp.canonicalize()?);
        let home = variable("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
        let search_path = variable("PATH").unwrap_or_default();
        let home = home.as_deref();
        let mut confinement = Self::new(profile, &workspace, &temp, home, &search_path);
        let tools = TOOL_HOME_VARIABLES.iter().filter_map(|name| variable(name));
        let tools = tools.filter_map(|path| Path::new(&path).canonicalize().ok());
        confinement.readable.extend(tools);
        let user = variable("XDG_CONFIG_HOME").map(|path| Path::new(&path).join("git/config"));
        let configs = GIT_CONFIG_VARIABLES
            .iter()
            .filter_map(|name| variable(name));
        confinement.git_configs = configs.map(PathBuf::from).chain(user).collect();
        if let Some(home) = home {
            confinement.protect_links_of(home, HOME_LINK_DEPTH, |name| name.starts_with('.'));
            for name in LINK_DIRECTORY_NAMES {
                confinement.protect_links_of(&home.join(name), CONFIG_LINK_DEPTH, |_| true);
            }
        }
        confinement.protect_links_of_workspace();
        Ok(confinement)
    }

    /// Makes the caches of a [grant](GRANTS) writable. Returns whether there is a grant of this name.
    pub fn grant(&mut self, name: &str) -> bool {
        let Some((_, paths)) = GRANTS.iter().find(|(grant, _)| *grant == name) else {
            return false;
        };
        if let Some(home) = &self.home {
            let paths = paths.iter().map(|path| home.join(path));
            self.writable.extend(paths);
        }
        true
    }

    /// Returns the directories beside the workspace that the command can write to.
    pub(crate) fn other_writable(&self) -> impl Iterator<Item = &PathBuf> {
        self.private_temp().into_iter().chain(&self.writable)
    }

    /// Returns the temporary directory. That of a check, which opens nothing, may contain the workspace and does not count.
    pub(crate) fn private_temp(&self) -> Option<&PathBuf> {
        Some(&self.temp).filter(|temp| !self.workspace.starts_with(temp))
    }

    /// Returns the home directory if it is in the workspace. The command can then see and change it, except for names that
    /// start with a period.
    pub(crate) fn home_in_workspace(&self) -> Option<&Path> {
        let home = self.home.as_deref();
        home.filter(|home| home.starts_with(&self.workspace))
    }

    /// Returns the home directory if it is not in the workspace. An empty directory covers it.
    pub(crate) fn covered_home(&self) -> Option<&Path> {
        let home = self.home.as_deref();
        home.filter(|home| !home.starts_with(&self.workspace))
    }

    /// Returns the caches that are private to the session: where they are, and where the command sees them.
    #[cfg(target_os = "linux")]
    pub(crate) fn private_caches(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        self.covered_home().into_iter().flat_map(|home| {
            let cache = |name: &&str| (self.temp.join(format!(".home-{name}")), home.join(name));
            PRIVATE_CACHE_NAMES.iter().map(cache)
        })
    }

    /// Returns the arguments that make a supervisor confine its command. They come after
    /// [`SUBCOMMAND`](crate::SUBCOMMAND).
    ///
    /// # Errors
    ///
    /// Fails if a path is not valid Unicode.
    pub fn to_args(&self) -> io::Result<[OsString; 2]> {
        let json = serde_json::to_string(self)?;
        Ok([CONFINE_FLAG.into(), json.into()])
    }

    /// Builds the namespaces of the next child of this process.
    #[cfg(target_os = "linux")]
    pub(crate) fn prepare(&self) -> io::Result<()> {
        crate::confine::prepare(self)
    }

    /// Restricts this process and all its children.
    #[cfg(target_os = "linux")]
    pub(crate) fn restrict(&self) -> io::Result<()> {
        crate::confine::restrict(self)
    }

    /// Does nothing on macOS, where `sandbox-exec` confines the command. Fails on systems without confinement.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn prepare(&self) -> io::Result<()> {
        if cfg!(target_os = "macos") {
            return Ok(());
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Does nothing: see [`Self::prepare`].
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn restrict(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the command that the first process starts after [`Self::restrict`].
    pub(crate) fn inner_command(&self, program: &OsStr) -> Command {
        if !cfg!(target_os = "macos") {
            return Command::new(program);
        }
        let mut command = Command::new("/usr/bin/sandbox-exec");
        command.args(["-p", &crate::seatbelt_profile(self), "--"]);
        command.arg(program);
        command
    }

    /// Returns a command that runs `program` confined, without a supervisor.
    ///
    /// # Errors
    ///
    /// Fails if a path is not valid Unicode.
    pub fn command(&self, launcher: &Launcher, program: impl AsRef<OsStr>) -> io::Result<Command> {
        let [_, json] = self.to_args()?;
        let mut command = Command::new(&launcher.0);
        command.args([SUBCOMMAND, ENTER_FLAG]).arg(json);
        command.arg(program);
        Ok(command)
    }

    /// Checks whether this system can confine commands, by confining one that does nothing.
    ///
    /// # Errors
    ///
    /// Fails with the reason if commands cannot be confined.
    pub fn check(&self, launcher: &Launcher) -> io::Result<()> {
        // What the workspace contains is a matter of each command.
        let probe = Self {
            can_write: false,
            ..self.clone()
        };
        let mut command = probe.command(launcher, "true")?;
        let output = command.current_dir("/").stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(reason.trim().to_owned()))
    }

    /// Returns whether a control group limits all processes of a supervised command together.
    pub fn has_control_group(&self) -> bool {
        #[cfg(target_os = "linux")]
        return crate::confine::ControlGroup::enter(&self.limits).is_some();
        #[cfg(not(target_os = "linux"))]
        return false;
    }

    /// Returns whether the limit on processes applies without a control group. For root, only newer kernels apply it.
    pub fn limits_processes(&self, launcher: &Launcher) -> bool {
        let read = || {
            let mut command = self.command(launcher, "cat")?;
            command.arg(PROCESS_LIMIT_FILE).current_dir("/");
            let output = command.stdin(Stdio::null()).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            text.trim().parse().map_err(io::Error::other)
        };
        let max = self.limits.max_processes;
        let has_own_limit =
            |highest: u64| max.is_none_or(|max| highest <= max.max(MIN_PROCESS_LIMIT));
        !rustix::process::getuid().is_root() || read().is_ok_and(has_own_limit)
    }
}

/// Returns the paths that programs in a directory of `PATH` need: the hidden directory below `home` that contains it,
/// such as `~/.pyenv` for `~/.pyenv/shims`, or else only the directory itself.
fn tool_paths(home: &Path, directory: &Path) -> Vec<PathBuf> {
    // `..` and symbolic links could lead to another directory than the name says.
    let directory = directory.canonicalize();
    let directory = directory.as_deref().unwrap_or(Path::new("/"));
    let Ok(below) = directory.strip_prefix(home) else {
        return tool_paths_elsewhere(home, directory);
    };
    let Some(first) = below.iter().next() else {
        return Vec::new();
    };
    let shared = SHARED_TOOL_NAMES.iter().find(|(name, _)| first == *name);
    match shared {
        Some((_, parts)) => parts.iter().map(|part| home.join(part)).collect(),
        None if first.as_encoded_bytes().starts_with(b".") => vec![home.join(first)],
        None => vec![directory.to_owned()],
    }
}

/// Returns the paths that programs in a directory of `PATH` outside the home directory need. If a name in its path starts
/// with a period, it is in the home of another user, where the same rules apply.
fn tool_paths_elsewhere(home: &Path, directory: &Path) -> Vec<PathBuf> {
    let mut visible = SYSTEM_DIRECTORIES.iter().chain(TEMP_DIRECTORIES);
    if home.starts_with(directory) || visible.any(|root| directory.starts_with(root)) {
        return Vec::new();
    }
    let is_hidden = |path: &&Path| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b".") && !home.starts_with(path)
    };
    let hidden = directory.ancestors().filter(is_hidden).last();
    match hidden.and_then(Path::parent) {
        Some(other) if directory.ends_with(".cargo/bin") => {
            vec![directory.to_owned(), other.join(".rustup")]
        }
        Some(other) => tool_paths(other, directory),
        None => vec![directory.to_owned()],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn confinement(path: &str) -> Confinement {
        let (workspace, temp) = (Path::new("/home/a/work"), Path::new("/tmp/x"));
        let home = Some(Path::new("/home/a"));
        Confinement::new(
            SandboxProfile::Workspace,
            workspace,
            temp,
            home,
            path.as_ref(),
        )
    }

    #[test]
    fn tools_of_the_home_directory_stay_readable_and_its_data_does_not() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        for name in [".pyenv/shims", ".local/bin", "projects/tool/bin"] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        let path = format!(
            "/usr/bin:{0}/.pyenv/shims:{0}/.local/bin:{0}/projects/tool/bin:{0}/x/..:{0}",
            home.display()
        );
        let temp = Path::new("/tmp/x");
        let profile = SandboxProfile::Workspace;
        let confinement = Confinement::new(
            profile,
            &home.join("work"),
            temp,
            Some(&home),
            path.as_ref(),
        );
        for name in [
            ".pyenv",
            ".local/bin",
            ".rustup",
            ".gitconfig",
            "projects/tool/bin",
        ] {
            assert!(confinement.readable.contains(&home.join(name)), "{name}");
        }
        for name in ["", ".local", ".cargo", ".ssh", ".config", "projects"] {
            assert!(!confinement.readable.contains(&home.join(name)), "{name}");
        }
    }

    #[test]
    fn tools_in_the_home_of_another_user_stay_readable() {
        let root = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let root = root.path().canonicalize().unwrap();
        for name in ["a/work/bin", "b/.cargo/bin", "b/.pyenv/shims", "b/.ssh"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let path = format!(
            "/usr/bin:{0}:{0}/b/.cargo/bin:{0}/b/.pyenv/shims:{0}/a/work/bin",
            root.display()
        );
        let (home, work) = (root.join("a"), root.join("a/work"));
        let (profile, temp) = (SandboxProfile::Workspace, Path::new("/tmp/x"));
        let confinement = Confinement::new(profile, &work, temp, Some(&home), path.as_ref());
        for (name, is_readable) in [
            ("b/.cargo/bin", true),
            ("b/.rustup", true),
            ("b/.pyenv", true),
            ("b/.cargo", false),
            ("b/.ssh", false),
            ("a/work/bin", false),
            ("b", false),
            ("", false),
        ] {
            let found = confinement.readable.contains(&root.join(name));
            assert_eq!(found, is_readable, "{name}");
        }
        assert!(!confinement.readable.contains(&PathBuf::from("/usr/bin")));
    }

    #[test]
    fn the_root_directory_is_no_home() {
        let (workspace, temp) = (Path::new("/work"), Path::new("/tmp/x"));
        let profile = SandboxProfile::Workspace;
        let root = Some(Path::new("/"));
        let confinement = Confinement::new(profile, workspace, temp, root, "/usr/bin".as_ref());
        assert_eq!(confinement.home, None);
        assert!(confinement.readable.is_empty());
    }

    #[test]
    fn a_grant_makes_its_caches_writable() {
        let mut confinement = confinement("/usr/bin");
        assert!(!confinement.grant("everything"));
        assert!(confinement.grant("cargo"));
        let expected = Path::new("/home/a/.cargo/registry");
        assert!(confinement.writable.iter().any(|path| path == expected));
    }

    #[test]
    fn a_profile_has_one_name() {
        for profile in SandboxProfile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert!("open".parse::<SandboxProfile>().is_err());
    }
}
