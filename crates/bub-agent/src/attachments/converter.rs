//! Runs external programs that read files of users.
//!
//! The file comes from a user, so the program is confined like a command of the agent, with read-only access, without
//! network, and with limits of time, memory and output.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    time::Duration,
};

use bub_kernel::{CancellationToken, Error, Result, Sender};
use bub_sandbox::SandboxProfile;
use rustix::fs::{Mode, OFlags};

use super::AttachmentReader;
use crate::shell::{Exit, ShellRequest};

/// Maximum time for a program.
const CONVERTER_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum memory of a program. The supervisor, which reserves more than it uses, has the same limit.
const MAX_MEMORY_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Maximum size of the result.
const MAX_RESULT_BYTES: u64 = 24 * 1024 * 1024;
/// The name of the result in the temporary directory of the program.
const RESULT_FILE: &str = "result";

impl AttachmentReader<'_> {
    /// Runs a program with a stored file and returns what it wrote. `arguments` gets the paths of the file and of the
    /// result. Returns `None` if the program is not installed.
    pub(super) async fn run_converter(
        &self,
        program: &str,
        saved: Option<&str>,
        arguments: impl Fn(&str, &str) -> String,
    ) -> Result<Option<Vec<u8>>> {
        let saved = saved.ok_or_else(|| Error::unknown("the file could not be stored"))?;
        let workspace = crate::workspace(self.turn.state()).unwrap_or_default();
        let sandbox = &self.agent.sandbox;
        let temp = sandbox.new_temp_directory()?;
        let (profile, sender) = (SandboxProfile::ReadOnly, Sender::terminal());
        let mut confinement =
            sandbox.confinement_with_temp(profile, &sender, temp.path(), &workspace)?;
        // With the limits of commands, because the result of the check holds for them, too.
        if let Some(reason) = sandbox.unavailable_reason(&confinement) {
            let text = format!("the sandbox, which `{program}` needs, is unavailable: {reason}");
            return Err(Error::unknown(text));
        }
        confinement.network = false;
        let limits = &mut confinement.limits;
        let max_memory = limits.max_memory_bytes.unwrap_or(MAX_MEMORY_BYTES);
        limits.max_memory_bytes = Some(max_memory.min(MAX_MEMORY_BYTES));
        limits.max_file_bytes = Some(MAX_RESULT_BYTES);
        // The name of a stored file has no characters with a meaning in a shell. The command sees its temporary
        // directory as `/tmp`.
        let arguments = arguments(saved, &format!("/tmp/{RESULT_FILE}"));
        let command = format!(
            "command -v {program} >/dev/null || exit 127; exec {program} {arguments} >/dev/null 2>&1"
        );
        let request = ShellRequest {
            command,
            session: self.turn.session_id().clone(),
            directory: Some(workspace),
            confinement: Some(confinement),
            ..ShellRequest::default()
        };
        let cancel = CancellationToken::new();
        let timer = async {
            tokio::time::sleep(CONVERTER_TIMEOUT).await;
            cancel.cancel();
            std::future::pending().await
        };
        let outcome = tokio::select! {
            outcome = self.agent.shells.run(request, CONVERTER_TIMEOUT * 2, &cancel) => outcome,
            outcome = timer => outcome,
        };
        if cancel.is_cancelled() {
            let seconds = CONVERTER_TIMEOUT.as_secs();
            let text = format!("reading it took longer than {seconds} seconds");
            return Err(Error::unknown(text));
        }
        match outcome?.exit {
            Some(Exit::Code(0)) => {
                let reading = tokio::task::spawn_blocking(move || read_result(temp.path()));
                Ok(Some(reading.await??))
            }
            Some(Exit::Code(127)) => Ok(None),
            _ => Err(Error::unknown(
                "the file is damaged, encrypted or too large",
            )),
        }
    }
}

/// Reads the result. A file may have made the program write a link to a file that only bub can read.
fn read_result(directory: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory.join(RESULT_FILE), flags, Mode::empty())?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the result is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_RESULT_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
