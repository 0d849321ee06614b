//! The sandbox of the agent's commands: which profile applies to a command, and what it opens.
//!
//! `bub-sandbox` describes and enforces a confinement. This module derives it from the settings and the sender.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bub_kernel::{Role, Sender, SessionId, ToolCaller};
use bub_sandbox::{
    Confinement, Launcher, PathAccess, ResourceLimits, SandboxProfile, hold_temp_directory,
    remove_temp_directory,
};
use bub_settings::{FromSettings, Settings};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    code_mode::STUB_DIRECTORY,
    exposure::WorkspaceExposure,
    settings::{SandboxNetwork, SandboxSettings},
    skills::Skills,
};

/// Directory in bub's home that holds the temporary directories of sessions.
const TEMP_DIRECTORY: &str = "sandbox";
/// Directory in bub's home that holds what was in each workspace before the commands that run there.
const RECORD_DIRECTORY: &str = "sandbox-records";
/// Age after which the temporary directory of a session is removed.
const TEMP_TTL: Duration = Duration::from_hours(7 * 24);
/// Parts of the output of a command that was refused something.
const REFUSAL_TEXTS: &[&str] = &[
    "Permission denied",
    "Read-only file system",
    "Operation not permitted",
    "Device or resource busy",
    "Invalid cross-device link",
    "Network is unreachable",
    "Could not resolve host",
    "Temporary failure in name resolution",
    "EACCES",
    "EBUSY",
    "EPERM",
    "EROFS",
    "ENETUNREACH",
];
/// Why no command runs in bub's home.
const BUB_HOME_TEXT: &str = "the workspace is in bub's own data: a command there could read bub's keys and change its settings; choose another directory with `-w DIR`";
/// How many paths in a failed command and its output are checked.
const MAX_CHECKED_PATHS: usize = 64;
/// How many words of a failed command are checked that may be relative paths.
const MAX_CHECKED_WORDS: usize = 512;
/// How many directories are tried for each relative path.
const MAX_VISITED_DIRECTORIES: usize = 4;
/// How many levels of a directory with skills are searched for links that lead into the workspace.
const SKILL_LINK_DEPTH: usize = 4;
const BYTES_PER_MB: u64 = 1024 * 1024;

/// Decides how the agent's commands are confined.
pub struct Sandbox {
    settings: Arc<Settings>,
    options: SandboxSettings,
    skills: Arc<Skills>,
    launcher: Option<Launcher>,
    /// Whether this system can confine commands, checked at first use.
    availability: OnceLock<Result<(), String>>,
}

impl Sandbox {
    /// Creates the sandbox. Without a launcher, commands cannot be confined.
    pub fn new(settings: Arc<Settings>, skills: Arc<Skills>, launcher: Option<Launcher>) -> Self {
        Self {
            options: SandboxSettings::from_settings(&settings),
            settings,
            skills,
            launcher,
            availability: OnceLock::new(),
        }
    }

    /// Returns the profile for a command of `sender`.
    ///
    /// A command that an owner typed is not confined. Other users are always confined.
    pub fn profile(&self, sender: &Sender, caller: ToolCaller) -> SandboxProfile {
        let configured = SandboxProfile::from(self.options.profile);
        match (sender.role, caller) {
            (Role::Owner, ToolCaller::User) => SandboxProfile::Off,
            (Role::Owner, ToolCaller::Model) => configured,
            (_, _) if configured == SandboxProfile::Off => SandboxProfile::Workspace,
            (_, _) => configured,
        }
    }

    /// Returns what a command in `profile` may reach.
    ///
    /// # Errors
    ///
    /// Fails if the temporary directory of the session cannot be created, or as [`Self::confinement_with_temp`] does.
    pub fn confinement(
        &self,
        profile: SandboxProfile,
        sender: &Sender,
        session: &SessionId,
        workspace: &Path,
    ) -> io::Result<Confinement> {
        let temp = self.temp_directory(session, workspace);
        if !temp.is_dir() {
            remove_old_directories(&self.settings.home().join(TEMP_DIRECTORY));
        }
        // From here on, the supervisor of the command holds it.
        let _held = hold_temp_directory(&temp)?;
        self.confinement_with_temp(profile, sender, &temp, workspace)
    }

    /// Returns what a command in `profile` may reach, with an existing directory as its temporary one.
    ///
    /// # Errors
    ///
    /// Fails if a directory does not exist, if the workspace is in bub's home, or if it contains private files and the
    /// sender is not an owner.
    pub fn confinement_with_temp(
        &self,
        profile: SandboxProfile,
        sender: &Sender,
        temp: &Path,
        workspace: &Path,
    ) -> io::Result<Confinement> {
        let settings = &self.settings;
        let real_workspace = workspace.canonicalize()?;
        let exposure = WorkspaceExposure::find(settings, &real_workspace);
        if let Some(exposure) = exposure.filter(|_| sender.role != Role::Owner) {
            return Err(io::Error::other(exposure.to_string()));
        }
        if real_workspace.starts_with(resolve(settings.home())) {
            return Err(io::Error::other(BUB_HOME_TEXT));
        }
        let variable = |name: &str| settings.environment().get(name).map(Into::into);
        let mut confinement = Confinement::from_environment(profile, workspace, temp, variable)?;
        confinement.hidden.push(resolve(settings.home()));
        confinement.records = Some(settings.home().join(RECORD_DIRECTORY));
        let skills = self.skills.roots_outside_workspace();
        // What bub itself reads, also if links lead to it.
        confinement.protect_links_of(settings.home(), 1, |_| true);
        for directory in [settings.home().join("skills")].iter().chain(&skills) {
            confinement.protect_links_of(directory, SKILL_LINK_DEPTH, |_| true);
        }
        let config = std::path::absolute(settings.config_file())?;
        confinement.protected.push(config);
        let stubs = settings.home().join(STUB_DIRECTORY);
        let skills = skills.into_iter().chain(stubs.is_dir().then_some(stubs));
        let configured = self.options.readable.iter().map(PathBuf::from);
        let readable = skills.chain(configured);
        confinement
            .readable
            .extend(readable.map(|path| resolve(&path)));
        let writable = self.options.writable.iter();
        confinement
            .writable
            .extend(writable.map(|path| resolve(Path::new(path))));
        for name in &self.options.grants {
            if !confinement.grant(name) {
                tracing::warn!(grant = %name, "sandbox.unknown_grant");
            }
        }
        confinement.network = self.has_network(sender);
        let in_bytes = |megabytes: Option<u64>| megabytes.map(|count| count * BYTES_PER_MB);
        confinement.limits = ResourceLimits {
            max_processes: self.options.max_processes,
            max_memory_bytes: in_bytes(self.options.max_memory_mb),
            max_file_bytes: in_bytes(self.options.max_file_mb),
        };
        Ok(confinement)
    }

    /// Creates a temporary directory for one command. It is removed when the returned value is dropped, or with the
    /// old directories of sessions if bub was killed.
    pub(crate) fn new_temp_directory(&self) -> io::Result<TempDir> {
        let root = self.settings.home().join(TEMP_DIRECTORY);
        let _held = hold_temp_directory(&root)?;
        TempDir::new_in(resolve(&root))
    }

    /// Returns the program that supervises and confines commands, if there is one.
    pub(crate) fn launcher(&self) -> Option<&Launcher> {
        self.launcher.as_ref()
    }

    /// Returns why commands cannot be confined, or `None` if they can be.
    pub fn unavailable_reason(&self, confinement: &Confinement) -> Option<&str> {
        let availability = self.availability.get_or_init(|| {
            let launcher = self.launcher.as_ref();
            let launcher = launcher.ok_or("this program cannot start confined commands")?;
            let checked = confinement.check(launcher);
            checked.map_err(|error| error.to_string())
        });
        availability.as_ref().err().map(String::as_str)
    }

    /// Returns whether commands of the sender can use the network.
    pub fn has_network(&self, sender: &Sender) -> bool {
        match self.options.network {
            SandboxNetwork::On => true,
            SandboxNetwork::Off => false,
            SandboxNetwork::Auto => is_at_terminal(sender),
        }
    }

    /// Returns the path of the private temporary directory of a session in a workspace.
    fn temp_directory(&self, session: &SessionId, workspace: &Path) -> PathBuf {
        let root = self.settings.home().join(TEMP_DIRECTORY);
        let workspace = resolve(workspace);
        let digest = Sha256::new()
            .chain_update(workspace.as_os_str().as_encoded_bytes())
            .chain_update([0])
            .chain_update(session.as_bytes())
            .finalize();
        let start = digest.iter().take(8);
        let number = start.fold(0, |number: u64, byte| (number << 8) | u64::from(*byte));
        root.join(format!("{number:016x}"))
    }
}

/// Returns whether the sender is the owner at the terminal in which bub runs.
pub(crate) fn is_at_terminal(sender: &Sender) -> bool {
    let terminal = Sender::terminal();
    sender.role == Role::Owner && (&sender.channel, &sender.id) == (&terminal.channel, &terminal.id)
}

/// Returns whether the sandbox may be the reason why a command failed: its output says so, or the command or its output
/// names a path that exists and that the sandbox hides. Relative paths start at `directory`, or where a `cd` leads.
pub(crate) fn looks_refused(
    command: &str,
    output: &str,
    directory: &Path,
    confinement: &Confinement,
) -> bool {
    // The directories above the workspace are there in the sandbox, too: `cd build && cmake ..` and `ls -a` name them.
    let is_hidden = |path: &Path| {
        !confinement.workspace.starts_with(path)
            && !path.starts_with("/dev")
            && confinement.access(path) == PathAccess::None
            && path.exists()
    };
    let leads_to_hidden = |path: PathBuf| path.canonicalize().is_ok_and(|path| is_hidden(&path));
    let is_absolute_hidden = |word: &str| {
        let below_home = word.strip_prefix("~/").zip(confinement.home.as_ref());
        let path = below_home.map(|(below, home)| home.join(below));
        let path = path.unwrap_or_else(|| PathBuf::from(word));
        let is_in_workspace = path.starts_with(&confinement.workspace);
        path.is_absolute() && (is_hidden(&path) || is_in_workspace && leads_to_hidden(path))
    };
    let is_absolute = |word: &&str| word.starts_with(['/', '~']);
    let is_parent = |word: &&str| *word == ".." || word.starts_with("../");
    let words = path_words(command).chain(path_words(output));
    let mut absolute = words.filter(is_absolute).take(MAX_CHECKED_PATHS);
    let in_command = path_words(command).filter(|word| !is_absolute(word));
    let in_output = path_words(output).filter(is_parent);
    let in_output = in_output.take(MAX_CHECKED_PATHS);
    let mut relative = in_command.take(MAX_CHECKED_WORDS).chain(in_output);
    let directories = visited_directories(command, directory);
    REFUSAL_TEXTS.iter().any(|text| output.contains(text))
        || absolute.any(is_absolute_hidden)
        || relative.any(|word| {
            let mut paths = directories.iter().map(|directory| directory.join(word));
            paths.any(leads_to_hidden)
        })
}

/// Returns the parts of a command or its output that may be paths, also those after an option such as `-I`.
fn path_words(text: &str) -> impl Iterator<Item = &str> {
    let is_separator =
        |character: char| character.is_whitespace() || "'\"=:;,|&<>()`".contains(character);
    let words = text.split(is_separator).map(|word| match word.as_bytes() {
        [b'-', ..] => word.get(2..).unwrap_or_default(),
        _ => word,
    });
    words.filter(|word| !word.is_empty())
}

/// Returns the directories in which parts of a command may run: where it starts, and where each `cd` leads.
fn visited_directories(command: &str, start: &Path) -> Vec<PathBuf> {
    let mut directories = vec![start.to_owned()];
    let words: Vec<_> = path_words(command).collect();
    for pair in words.windows(2) {
        if let (["cd", target], Some(last)) = (pair, directories.last())
            && directories.len() < MAX_VISITED_DIRECTORIES
        {
            directories.push(last.join(target));
        }
    }
    directories
}

/// Returns the note about a confined command that failed, for the model.
pub(crate) fn failure_note(confinement: &Confinement) -> String {
    let write = if confinement.can_write {
        "the workspace and /tmp"
    } else {
        "/tmp"
    };
    let network = if confinement.network {
        ""
    } else {
        ", and it has no network"
    };
    format!("[sandbox: the command can write only to {write}{network}]")
}

fn resolve(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Removes temporary directories that have not been used for a while, except those of running commands. Ignores errors:
/// the next call retries.
fn remove_old_directories(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries {
        let modified = entry.metadata().and_then(|found| found.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age > TEMP_TTL) {
            let _ = remove_temp_directory(&entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_failure_because_of_the_sandbox_is_recognized() {
        let (workspace, temp) = (Path::new("/no/work"), Path::new("/no/temp"));
        let path = "/usr/bin".as_ref();
        let profile = SandboxProfile::Workspace;
        let confinement = Confinement::new(profile, workspace, temp, None, path);
        let refused =
            |command: &str, output: &str| looks_refused(command, output, workspace, &confinement);
        assert!(refused("x", "mv: Device or resource busy"));
        assert!(refused(
            "git clone '/var' copy",
            "fatal: repository does not exist"
        ));
        assert!(refused(
            "cargo build",
            "could not execute `/var`: No such file"
        ));
        assert!(!refused(
            "cat /usr/bin/no /no/work/x /etc",
            "No such file or directory"
        ));
    }

    #[test]
    fn a_failure_because_of_a_relative_path_that_the_sandbox_hides_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().canonicalize().unwrap();
        let workspace = outside.join("w0");
        fs::create_dir_all(workspace.join("sub")).unwrap();
        fs::create_dir_all(outside.join("remote.git")).unwrap();
        for file in ["offer.txt", "w0/notes.txt", "w0/sub/x"] {
            fs::write(outside.join(file), "text").unwrap();
        }
        for (target, link) in [
            ("../offer.txt", "l0"),
            ("notes.txt", "l1"),
            ("../gone", "l2"),
        ] {
            std::os::unix::fs::symlink(target, workspace.join(link)).unwrap();
        }
        let profile = SandboxProfile::Workspace;
        let (temp, path) = (Path::new("/no/temp"), "/usr/bin".as_ref());
        let confinement = Confinement::new(profile, &workspace, temp, None, path);
        let sub = workspace.join("sub");
        let absolute_link = format!("cat {}", workspace.join("l0").display());
        for (command, output, start) in [
            ("git clone ../remote.git cl", "does not exist", &workspace),
            ("cat ../offer.txt", "No such file", &workspace),
            ("cd ../remote.git", "No such file", &workspace),
            ("make -C ../remote.git", "No such file", &workspace),
            ("cc -I../remote.git x.c", "No such file", &workspace),
            ("cat l0", "No such file", &workspace),
            (&absolute_link, "No such file", &workspace),
            ("cat ../../offer.txt", "No such file", &sub),
            ("cd sub && cat ../../offer.txt", "No such file", &workspace),
            ("make", "cannot open `../offer.txt'", &workspace),
        ] {
            assert!(
                looks_refused(command, output, start, &confinement),
                "{command}"
            );
        }
        for (command, start) in [
            ("cat ../gone l1 l2 notes.txt no", &workspace),
            ("cat ../notes.txt x", &sub),
            ("cd sub && cat ../no ../notes.txt", &workspace),
            ("git log HEAD..main -- .", &workspace),
            ("cd sub && cmake ..", &workspace),
            ("ls -a . .. ../..; false", &workspace),
        ] {
            let output = "No such file or directory";
            assert!(
                !looks_refused(command, output, start, &confinement),
                "{command}"
            );
        }
    }
}
