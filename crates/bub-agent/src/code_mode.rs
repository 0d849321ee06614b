//! Code mode: the model runs Python code, and the code calls tools.
//!
//! * [`CodeMode`]: the Python interpreters, and the stub that describes the tools to the model.
//! * `stub`: makes the stub from the schemas of the tools.
//! * `runner`: runs code in a process, and answers its tool calls.

mod runner;
mod stub;

use std::{
    ffi::OsString,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_sandbox::{Confinement, PathAccess};
use bub_settings::Settings;
use sha2::{Digest, Sha256};

pub(crate) use runner::{CodeRequest, run_code};
pub(crate) use stub::function_name;

use crate::{shell, tool_set::ToolSet};

/// Directory in bub's home that holds the stubs.
pub(crate) const STUB_DIRECTORY: &str = "codemode";
/// The interpreter that runs code.
const PYTHON: &str = "python3";

/// What code mode needs from the system.
pub(crate) struct CodeMode {
    settings: Arc<Settings>,
    /// All interpreters in the `PATH` of commands.
    interpreters: Vec<PathBuf>,
}

impl CodeMode {
    /// Finds the Python interpreters in the `PATH` of commands.
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        let variables = settings.child_environment().into_iter();
        let mut variables = variables.filter(|(name, _)| *name == "PATH");
        let path = variables.next().map(|(_, path)| path.to_owned());
        Self {
            settings: Arc::clone(settings),
            interpreters: shell::find_programs(path.as_deref(), PYTHON).collect(),
        }
    }

    /// Returns whether this system can run code.
    pub(crate) fn is_available(&self) -> bool {
        !self.interpreters.is_empty()
    }

    /// Returns the command that runs code: with the first interpreter that a confined process can reach. Returns `None`
    /// without one.
    pub(crate) fn command(&self, confinement: Option<&Confinement>) -> Option<[OsString; 4]> {
        let is_reachable = |confinement: &Confinement, python: &Path| {
            let python = python.canonicalize().unwrap_or_default();
            confinement.access(&python) != PathAccess::None
        };
        let mut interpreters = self.interpreters.iter();
        let python = interpreters.find(|python| {
            confinement.is_none_or(|confinement| is_reachable(confinement, python))
        })?;
        let [unbuffered, source] = ["-u", "-c"].map(OsString::from);
        Some([
            python.into(),
            unbuffered,
            source,
            runner::RUNNER_SOURCE.into(),
        ])
    }

    /// Returns the block of the system prompt, and writes the stub that it names.
    ///
    /// # Errors
    ///
    /// Fails if the stub cannot be written.
    pub(crate) fn prompt_block(
        &self,
        tools: &ToolSet,
        workspace: &Path,
        session_id: &str,
    ) -> io::Result<String> {
        let text = stub::build_stub(tools.code_tools().map(|tool| tool.spec()));
        let mut session = workspace.as_os_str().as_encoded_bytes().to_vec();
        session.push(0);
        session.extend_from_slice(session_id.as_bytes());
        let directory = self.settings.home().join(STUB_DIRECTORY);
        let directory = directory.join(hash_text(&session, 16));
        let file = directory.join(format!("tools-{}.pyi", hash_text(text.as_bytes(), 12)));
        if !file.exists() {
            fs::create_dir_all(&directory)?;
            let mut temporary = tempfile::NamedTempFile::new_in(&directory)?;
            temporary.write_all(text.as_bytes())?;
            temporary.persist(&file)?;
        }
        let file = file.display();
        Ok(format!(
            "<code_mode>\nOther tools are async Python functions `tools.<name>` that only code in `run_code` can call. Their \
             signatures are in {file}: read it before you use one. `await` each call and pass keyword arguments. You see \
             only what the code prints.\n</code_mode>"
        ))
    }
}

/// Returns the first digits of the SHA-256 of some bytes.
fn hash_text(bytes: &[u8], digits: usize) -> String {
    let hash = format!("{:x}", Sha256::digest(bytes));
    hash.chars().take(digits).collect()
}
