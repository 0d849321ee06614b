//! `bub config edit`: opens a private copy of the config file in the user's editor. Validates the copy before it
//! replaces the file.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use bub_kernel::{Error, Result};
use bub_settings::{ConfigFile, Environment, Settings};
use rustix::process::{Pid, test_kill_process};

use super::{
    PER_PROVIDER_SETTINGS, RevisedSettings, open_file, output, prompt, save, scope_to_provider,
    unscoped_owner,
};
use bub::signals;

pub(super) async fn edit_config(settings: &Settings) -> Result<ExitCode> {
    let mut file = open_file(settings)?;
    let old = file.parse().unwrap_or_default();
    let former_owner = unscoped_owner(settings, &file);
    let copy = EditCopy::create(&file, settings.home())?;
    let revised = loop {
        run_editor(settings, &copy.0).await?;
        file.set_text(copy.read_text()?);
        if !file.is_changed() {
            return output::print("no changes\n");
        }
        // The user changed the provider: values without a provider stay with the previous provider, unless the user
        // edited them.
        if former_owner.is_some() && unscoped_owner(settings, &file) != former_owner {
            let new = file.parse().unwrap_or_default();
            let mut keys = PER_PROVIDER_SETTINGS.to_vec();
            keys.retain(|key| old.get(*key) == new.get(*key));
            for key in keys {
                scope_to_provider(&mut file, former_owner.as_deref(), key)?;
            }
        }
        let error = match save(settings, &mut file) {
            Ok(revised) => break revised,
            Err(error) => error,
        };
        let error = settings.redactor().redact(error.message());
        let error = error.replace(&*copy.0.to_string_lossy(), "the file");
        notice!("not saved: {}", output::sanitize_line(&error));
        if !prompt::has_terminal() || !prompt::confirm("Edit again?", true).await? {
            return Err(Error::config(
                "config file not saved: the edited text is invalid; run `bub config edit` again",
            ));
        }
    };
    let revised = RevisedSettings {
        settings: revised,
        former_owner,
    };
    revised.print_owner_change(settings)?;
    output::print(&format!("saved {}\n", settings.config_file().display()))
}

/// A private copy of the config file. It is removed on drop and when a signal ends the program.
struct EditCopy(PathBuf);

impl EditCopy {
    fn create(file: &ConfigFile, home: &Path) -> Result<Self> {
        let mut directory = fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(home)?;
        remove_stale_copies(home);
        let path = home.join(format!("{COPY_PREFIX}{}{COPY_SUFFIX}", std::process::id()));
        // A file of this name is from an earlier process with the same id.
        remove_copy(&path);
        signals::remove_file_on_exit(Some(path.clone()));
        signals::exit_on_signal();
        let copied = Self(path);
        let mut options = fs::File::options();
        options.write(true).create_new(true).mode(0o600);
        let mut copy = options.open(&copied.0)?;
        copy.write_all(file.text().as_bytes())?;
        Ok(copied)
    }

    fn read_text(&self) -> Result<String> {
        let read_error = |reason: &str| {
            Error::unknown(format!(
                "cannot read the edited file: {reason}; nothing was saved; run `bub config edit` again"
            ))
        };
        // Reading a named pipe would block until a process writes to it.
        match fs::symlink_metadata(&self.0) {
            Ok(metadata) if metadata.is_file() => {
                fs::read_to_string(&self.0).map_err(|error| read_error(&error.to_string()))
            }
            Ok(_) => Err(read_error("it is not a regular file")),
            Err(_) => Err(read_error("the editor removed it")),
        }
    }
}

impl Drop for EditCopy {
    fn drop(&mut self) {
        remove_copy(&self.0);
        signals::remove_file_on_exit(None);
    }
}

/// Start of the file name of a copy. The process id and [`COPY_SUFFIX`] follow.
const COPY_PREFIX: &str = ".config-";
const COPY_SUFFIX: &str = ".yml";

/// Removes copies that killed processes left behind, because the copies can contain API keys.
pub(super) fn remove_stale_copies(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(COPY_PREFIX)?.strip_suffix(COPY_SUFFIX));
        let process = number.and_then(|number| Pid::from_raw(number.parse().ok()?));
        if process.is_some_and(|process| test_kill_process(process) == Err(rustix::io::Errno::SRCH))
        {
            remove_copy(&entry.path());
        }
    }
}

/// Removes the copy, also if the editor replaced it with a directory.
fn remove_copy(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

/// Runs the editor and waits for it. Ctrl-C goes to the editor while it runs.
async fn run_editor(settings: &Settings, file: &Path) -> Result<()> {
    let environment = settings.environment();
    let named = |name| {
        Environment::get(environment, name)
            .filter(|value| !value.to_string_lossy().trim().is_empty())
    };
    let editor = match named("VISUAL").or_else(|| named("EDITOR")) {
        Some(editor) => editor,
        None if prompt::has_terminal() => OsStr::new("vi"),
        None => {
            return Err(Error::invalid_input(
                "cannot edit without a terminal; use `bub config set`, or set EDITOR to a command that needs none",
            ));
        }
    };
    // The value may contain arguments and quotes (`code --wait`), so a shell parses it, as in git.
    let mut script = OsString::from(editor);
    script.push(" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg(editor).arg(file);
    command.env_clear().envs(settings.child_environment());
    let start_error = |error: std::io::Error| {
        Error::unknown(format!(
            "cannot start the editor: {error}; set `EDITOR` to another command"
        ))
    };
    let mut child = command.spawn().map_err(start_error)?;
    let mut end = tokio::task::spawn_blocking(move || child.wait());
    let status = loop {
        let interrupt = signals::next_interrupt();
        tokio::select! {
            status = &mut end => break status,
            _ = interrupt => {}
        }
    };
    let status = status.map_err(std::io::Error::other).flatten();
    if status.map_err(start_error)?.success() {
        return Ok(());
    }
    let name = editor.to_string_lossy();
    Err(Error::unknown(format!(
        "editor `{name}` failed; nothing was saved"
    )))
}
