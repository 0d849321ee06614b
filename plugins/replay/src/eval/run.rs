//! Runs one case: each message with a separate process of bub, in a temporary home and workspace.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use bub::{Error, Result, Settings, model::Catalog};
use serde::Serialize;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::{
    case::EvalCase,
    check::{failures, shorten},
};
use crate::{
    files::{FileResultExt as _, TemporaryDirectory, open_file},
    program,
    recording::Recording,
    report::CallTotals,
};

/// The session of a case.
const SESSION: &str = "eval";
/// What a case does not share with the home of the user.
const OWN_ENTRIES: [&str; 6] = ["tapes", "history", "gateway", "logs", "run", "sandbox"];

/// What all cases of a run share.
pub(super) struct Runner<'a> {
    pub(super) settings: &'a Settings,
    pub(super) catalog: Catalog,
    pub(super) timeout: Duration,
}

/// A version to compare: a model, a program, or both.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) label: String,
    pub(super) model: Option<String>,
    pub(super) program: PathBuf,
}

/// The outcome of one run of a case.
#[derive(Debug, Default, Serialize)]
pub(super) struct CaseOutcome {
    pub(super) case: String,
    pub(super) variant: String,
    pub(super) run: u16,
    /// What is not as expected; empty if the case passed.
    pub(super) failures: Vec<String>,
    #[serde(flatten)]
    pub(super) totals: CallTotals,
}

impl Runner<'_> {
    /// Runs a case once.
    pub(super) async fn run(&self, case: &EvalCase, variant: &Variant, run: u16) -> CaseOutcome {
        let started = Instant::now();
        let mut outcome = CaseOutcome {
            case: case.name.clone(),
            variant: variant.label.clone(),
            run,
            ..CaseOutcome::default()
        };
        match tokio::time::timeout(self.timeout, self.run_messages(case, variant)).await {
            Ok(Ok((failures, totals))) => (outcome.failures, outcome.totals) = (failures, totals),
            Ok(Err(error)) => outcome.failures.push(error.message().to_owned()),
            Err(_) => outcome.failures.push(format!(
                "the case did not end within {} s",
                self.timeout.as_secs()
            )),
        }
        outcome.totals.elapsed_ms =
            u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        outcome
    }

    async fn run_messages(
        &self,
        case: &EvalCase,
        variant: &Variant,
    ) -> Result<(Vec<String>, CallTotals)> {
        let directory = TemporaryDirectory::create("bub-eval-")?;
        let (home, workspace) = (
            directory.path().join("home"),
            directory.path().join("workspace"),
        );
        self.prepare_home(&home)?;
        std::fs::create_dir_all(&workspace).at("create", &workspace)?;
        if let Some(files) = &case.files {
            let files = case.files_directory(files)?;
            copy_directory(&files, &workspace, &files)?;
        }
        let mut problems = Vec::new();
        for message in &case.messages {
            let mut command = program::command(&variant.program, &workspace);
            program::pass_variables(&mut command, self.settings, |_| true);
            command.args([
                "run",
                "--session-id",
                SESSION,
                "--output",
                "json",
                "--no-stdin",
            ]);
            if !case.allow.is_empty() {
                command.args(["--allow", &case.allow.join(",")]);
            }
            let model = variant.model.clone().or_else(|| case.resolved_model());
            command.args(model.iter().flat_map(|model| ["--model", model.as_str()]));
            command
                .arg("--")
                .arg(message)
                .envs(&case.env)
                .env("BUB_HOME", &home);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut child = program::spawn(&mut command)?;
            let (mut stdout, mut stderr) = (String::new(), String::new());
            let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
            let read_out = async {
                match &mut out {
                    Some(out) => out.read_to_string(&mut stdout).await,
                    None => Ok(0),
                }
            };
            let read_err = async {
                match &mut err {
                    Some(err) => err.read_to_string(&mut stderr).await,
                    None => Ok(0),
                }
            };
            let (status, _, _) = tokio::try_join!(child.wait(), read_out, read_err)?;
            if !status.success() {
                let result: Option<Value> = serde_json::from_str(&stdout).ok();
                let error =
                    result.and_then(|result| Some(result.get("error")?.as_str()?.to_owned()));
                let reason = error.unwrap_or_else(|| shorten(stderr.trim()));
                problems.push(format!("`{}` failed: {reason}", shorten(message)));
                break;
            }
        }
        let Some(recording) = Recording::of_home(&home).await? else {
            problems.push("the case has no tape, so nothing can be checked".to_owned());
            return Ok((problems, CallTotals::default()));
        };
        let totals = CallTotals::new(&recording.calls, &self.catalog);
        problems.extend(failures(
            &case.expect,
            &recording,
            &totals,
            &self.catalog,
            &workspace,
        ));
        Ok((problems, totals))
    }

    /// Creates a home with the configuration, the plugins and the skills of the user, but with its own tapes.
    fn prepare_home(&self, home: &Path) -> Result<()> {
        std::fs::create_dir_all(home).at("create", home)?;
        let Ok(entries) = std::fs::read_dir(self.settings.home()) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !OWN_ENTRIES.iter().any(|own| name == *own) {
                let link = home.join(name);
                std::os::unix::fs::symlink(entry.path(), &link).at("create", &link)?;
            }
        }
        Ok(())
    }
}

/// Fails if a link in a directory leads out of `root`.
pub(super) fn check_links(directory: &Path, root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory).at("read", directory)? {
        let entry = entry.at("read", directory)?;
        let file_type = entry.file_type().at("read", &entry.path())?;
        if file_type.is_symlink() {
            link_target(&entry.path(), root)?;
        } else if file_type.is_dir() {
            check_links(&entry.path(), root)?;
        }
    }
    Ok(())
}

/// Returns the path of what a link leads to, and the same path without `root`. Fails if it is not in `root`.
fn link_target(link: &Path, root: &Path) -> Result<(PathBuf, PathBuf)> {
    let real_path = link.canonicalize().at("read", link)?;
    match real_path.strip_prefix(root) {
        Ok(inside) => {
            let inside = inside.to_owned();
            Ok((real_path, inside))
        }
        Err(_) => Err(Error::invalid_input(format!(
            "the link {} leads out of `files`, to {}",
            link.display(),
            real_path.display()
        ))),
    }
}

/// Copies a directory. A link to a file becomes a file, and a link to a directory a link in the copy. Fails if a link leads out
/// of `root`.
fn copy_directory(from: &Path, to: &Path, root: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).at("read", from)? {
        let entry = entry.at("read", from)?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let file_type = entry.file_type().at("read", &source)?;
        if file_type.is_symlink() {
            let (real_path, inside) = link_target(&source, root)?;
            if real_path.is_dir() {
                // The content is copied once, so a link to a parent directory does no harm.
                let depth = from.strip_prefix(root).unwrap_or(from).components().count();
                let up = ["."].into_iter().chain(std::iter::repeat_n("..", depth));
                let link = up.collect::<PathBuf>().join(inside);
                std::os::unix::fs::symlink(link, &target).at("create", &target)?;
                continue;
            }
        }
        if file_type.is_dir() {
            std::fs::create_dir_all(&target).at("create", &target)?;
            copy_directory(&source, &target, root)?;
        } else {
            let mut content = open_file(&source).at("copy", &source)?;
            let mode = content.metadata().at("copy", &source)?.permissions();
            let mut copy = std::fs::File::create(&target).at("create", &target)?;
            std::io::copy(&mut content, &mut copy).at("copy", &source)?;
            copy.set_permissions(mode).at("create", &target)?;
        }
    }
    Ok(())
}
