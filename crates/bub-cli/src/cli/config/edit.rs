//! `bub config edit`: a private copy in the user's editor, checked before it takes the place of the file.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use bub_kernel::{Error, Result};
use bub_settings::{ConfigFile, Environment, Settings};
use rustix::process::{Pid, test_kill_process};

use super::{
    PER_PROVIDER_SETTINGS, note_owner, open, output, plain_owner, prompt, save, scope_to_provider,
};
use bub::signals;

pub(super) async fn edit(settings: &Settings) -> Result<ExitCode> {
    let mut file = open(settings)?;
    let (old, before) = (
        file.value().unwrap_or_default(),
        plain_owner(settings, &file),
    );
    let copy = EditCopy::create(&file, settings.home())?;
    let revised = loop {
        run_editor(settings, &copy.0).await?;
        file.replace(copy.text()?);
        if !file.is_changed() {
            return output::print("nothing was changed\n");
        }
        // What was there before stays with the model it was there for; what is new was written for the new one.
        if before.is_some() && plain_owner(settings, &file) != before {
            let new = file.value().unwrap_or_default();
            let mut same = PER_PROVIDER_SETTINGS
                .into_iter()
                .filter(|whole| old.get(*whole) == new.get(*whole));
            same.try_for_each(|whole| scope_to_provider(&mut file, before.as_deref(), whole))?;
        }
        let error = match save(settings, &mut file) {
            Ok(revised) => break revised,
            Err(error) => error,
        };
        let error = settings
            .redactor()
            .redact(error.message())
            .replace(&*copy.0.to_string_lossy(), "the file");
        prompt::print_stderr(&format!("not saved: {}\n", output::one_line(&error)));
        if !prompt::has_terminal() || !prompt::confirm("edit again?", true).await? {
            return Err(Error::config("nothing was saved"));
        }
    };
    note_owner(settings, &revised, before.as_deref())?;
    output::print(&format!("saved {}\n", settings.config_file().display()))
}

/// A private copy to edit, gone afterwards, also when a signal ends the program.
struct EditCopy(PathBuf);

impl EditCopy {
    fn create(file: &ConfigFile, home: &Path) -> Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(home)?;
        remove_leftovers(home);
        let path = home.join(format!("{PREFIX}{}{SUFFIX}", std::process::id()));
        // One of the same name is of a process that had this number before.
        remove(&path);
        signals::remove_at_end(Some(path.clone()));
        signals::exit_on_signal();
        let copied = Self(path);
        let mut options = fs::OpenOptions::new();
        let mut copy = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&copied.0)?;
        std::io::Write::write_all(&mut copy, file.text().as_bytes())?;
        Ok(copied)
    }

    fn text(&self) -> Result<String> {
        let left =
            |problem: &str| Error::unknown(format!("the editor left {problem}; nothing was saved"));
        // Reading a pipe would wait for somebody who writes.
        match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_file() => fs::read_to_string(&self.0)
                .map_err(|error| left(&format!("what cannot be read ({error})"))),
            Ok(_) => Err(left("something else than a file")),
            Err(_) => Err(left("no file")),
        }
    }
}

impl Drop for EditCopy {
    fn drop(&mut self) {
        remove(&self.0);
        signals::remove_at_end(None);
    }
}

const PREFIX: &str = ".config-";
const SUFFIX: &str = ".yml";

/// Removes the copies of processes that were killed: keys are in them.
pub(super) fn remove_leftovers(home: &Path) {
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        let process = number.and_then(|number| Pid::from_raw(number.parse().ok()?));
        if process.is_some_and(|process| test_kill_process(process) == Err(rustix::io::Errno::SRCH))
        {
            remove(&entry.path());
        }
    }
}

/// Whatever an editor made of it.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

/// Waits for the editor, which Ctrl-C is for while it runs.
async fn run_editor(settings: &Settings, file: &Path) -> Result<()> {
    let environment = settings.environment();
    let named = |name| {
        Environment::get(environment, name)
            .filter(|value| !value.to_string_lossy().trim().is_empty())
    };
    let editor = named("VISUAL")
        .or_else(|| named("EDITOR"))
        .unwrap_or(OsStr::new("vi"));
    // It may come with arguments and quotes (`code --wait`), so a shell reads it, as git does it.
    let mut script = OsString::from(editor);
    script.push(" \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg(editor).arg(file);
    command.env_clear().envs(settings.child_environment());
    let failed =
        |error: std::io::Error| Error::unknown(format!("cannot start the editor: {error}"));
    let mut child = command.spawn().map_err(failed)?;
    let mut end = tokio::task::spawn_blocking(move || child.wait());
    let status = loop {
        let interrupt = signals::next_interrupt();
        tokio::select! {
            status = &mut end => break status,
            _ = interrupt => {}
        }
    };
    let status = status
        .map_err(std::io::Error::other)
        .and_then(|status| status)
        .map_err(failed)?;
    let name = editor.to_string_lossy();
    status
        .success()
        .then_some(())
        .ok_or_else(|| Error::unknown(format!("`{name}` failed; nothing was saved")))
}
