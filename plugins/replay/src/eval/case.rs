//! Cases: what to send, and what to expect.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Component, Path, PathBuf},
};

use bub::{Error, Result, settings::parse_unique_yaml};
use serde::Deserialize;
use serde_json::Value;

use super::{run::check_links, schema::schema_problem};
use crate::{
    files::{FileResultExt as _, read_file},
    recording::Recording,
};

/// Name of the file of a case in its own directory.
pub(super) const CASE_FILE: &str = "case.yml";
/// Name of the tape of a recorded case.
pub(super) const TAPE_FILE: &str = "tape.jsonl";

/// Variables that a case cannot set: without its temporary home and its tape, it could not be checked.
const RESERVED_VARIABLES: [&str; 2] = ["BUB_HOME", "BUB_TAPE_STORAGE"];

/// One case.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EvalCase {
    #[serde(skip)]
    pub(super) name: String,
    /// The directory that relative paths in the case refer to.
    #[serde(skip)]
    pub(super) directory: PathBuf,
    /// The messages of the user, in order.
    pub(super) messages: Vec<String>,
    /// The model, unless the command names one. In `replay:PATH`, the path is relative to the case.
    pub(super) model: Option<String>,
    /// A directory whose content is copied to the workspace of the case.
    pub(super) files: Option<PathBuf>,
    /// Tools that run without a question.
    pub(super) allow: Vec<String>,
    /// Variables of the environment, such as settings.
    pub(super) env: BTreeMap<String, String>,
    pub(super) expect: Expectations,
}

/// What a case expects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Expectations {
    /// Tools that are called in this order. Other calls may be in between.
    pub(super) tools: Vec<String>,
    /// Tools that are not called.
    pub(super) not_tools: Vec<String>,
    /// Texts that the last answer contains.
    pub(super) text: Vec<String>,
    /// Texts that the last answer does not contain.
    pub(super) not_text: Vec<String>,
    /// Texts that files of the workspace contain; null if the file does not exist.
    pub(super) files: BTreeMap<String, Option<String>>,
    /// Maximum cost in US dollars.
    pub(super) max_cost: Option<f64>,
    /// Maximum number of input and output tokens.
    pub(super) max_tokens: Option<u64>,
    /// Maximum number of model calls.
    pub(super) max_steps: Option<usize>,
    /// JSON Schema of the last answer.
    pub(super) schema: Option<Value>,
}

/// Reads the cases in a directory, sorted by name: `NAME.yml`, `NAME.jsonl` (a tape), and `NAME/case.yml`.
pub(super) async fn read_cases(directory: &Path) -> Result<Vec<EvalCase>> {
    let files = std::fs::read_dir(directory).at("read", directory)?;
    let mut paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    let mut cases: Vec<EvalCase> = Vec::new();
    let mut files: HashMap<String, PathBuf> = HashMap::new();
    for path in paths {
        let count = cases.len();
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension {
            Some("yml" | "yaml" | "json") => cases.push(read_case(&path, &path)?),
            Some("jsonl") => cases.push(tape_case(&path).await?),
            _ if path.join(CASE_FILE).is_file() => {
                cases.push(read_case(&path.join(CASE_FILE), &path)?);
            }
            _ => {}
        }
        // Results have the name of the case.
        if let Some(case) = cases.get(count)
            && let Some(other) = files.insert(case.name.clone(), path.clone())
        {
            return Err(Error::invalid_input(format!(
                "{} and {} are both the case `{}`; rename one",
                other.display(),
                path.display(),
                case.name
            )));
        }
    }
    if cases.is_empty() {
        let text = format!(
            "no cases in {}; add one with `bub eval record SESSION`",
            directory.display()
        );
        return Err(Error::invalid_input(text));
    }
    Ok(cases)
}

/// Reads the file of a case. `named` is the file or directory whose name the case has.
fn read_case(file: &Path, named: &Path) -> Result<EvalCase> {
    let invalid = |error: String| Error::invalid_input(format!("{}: {error}", file.display()));
    let bytes = read_file(file).map_err(|error| invalid(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| invalid(error.to_string()))?;
    let value = parse_unique_yaml(&text).map_err(|error| invalid(error.to_string()))?;
    if value.is_null() {
        return Err(invalid("the case is empty; add `messages`".to_owned()));
    }
    let case: EvalCase =
        serde_json::from_value(value).map_err(|error| invalid(error.to_string()))?;
    if let Some(problem) = case.problem() {
        return Err(invalid(problem));
    }
    let case = case.located(file, named);
    if let Some(files) = &case.files {
        let files = case.files_directory(files);
        let checked = files.and_then(|files| check_links(&files, &files));
        checked.map_err(|error| invalid(error.message().to_owned()))?;
    }
    Ok(case)
}

/// Makes a case of a tape: its messages, its model calls, and the tools that it calls.
pub(super) async fn tape_case(path: &Path) -> Result<EvalCase> {
    let recording = Recording::open(path).await?;
    if recording.turn_count() == 0 {
        let text = format!("{}: the tape has no turn of the agent", path.display());
        return Err(Error::invalid_input(text));
    }
    let failure =
        (0..recording.turn_count()).find_map(|index| Some((index + 1, recording.failure(index)?)));
    if let Some((number, reason)) = failure {
        return Err(Error::invalid_input(format!(
            "{}: turn {number} did not succeed when it was recorded, so the case cannot pass: {reason}; make a case without \
             it with `bub eval record SESSION`",
            path.display()
        )));
    }
    let mut case = EvalCase::from_recording(&recording);
    case.model = Some(format!(
        "replay:{}",
        path.file_name().unwrap_or_default().to_string_lossy()
    ));
    Ok(case.located(path, path))
}

impl EvalCase {
    /// Makes a case of a recording. It expects the recorded tools, in their order.
    pub(super) fn from_recording(recording: &Recording) -> Self {
        let turns = recording.turns.iter();
        Self {
            messages: turns.map(|turn| recording.prompt_text(turn)).collect(),
            expect: Expectations {
                tools: called_tools(recording),
                ..Expectations::default()
            },
            ..Self::default()
        }
    }

    /// Returns why the case cannot run.
    fn problem(&self) -> Option<String> {
        if self.messages.is_empty() {
            return Some("a case needs `messages`".to_owned());
        }
        let mut variables = self.env.keys();
        let is_reserved = |name: &&String| {
            let mut reserved = RESERVED_VARIABLES.iter();
            reserved.any(|reserved| name.eq_ignore_ascii_case(reserved))
        };
        if let Some(name) = variables.find(is_reserved) {
            return Some(format!(
                "`env` has `{name}`, but each case has its own home and tape; remove it"
            ));
        }
        if let Some(files) = self.files.as_deref().filter(|files| !is_inside(files)) {
            return Some(format!(
                "`files` has the path `{}`, which is outside of the directory of the case",
                files.display()
            ));
        }
        let mut files = self.expect.files.keys();
        if let Some(name) = files.find(|name| !is_inside(Path::new(name))) {
            return Some(format!(
                "`expect.files` has the path `{name}`, which is outside of the workspace"
            ));
        }
        let schema = self.expect.schema.as_ref();
        schema.and_then(|schema| schema_problem(schema, "`expect.schema`"))
    }

    fn located(mut self, file: &Path, named: &Path) -> Self {
        let name = named.file_stem().unwrap_or_default();
        self.name = name.to_string_lossy().into_owned();
        file.parent()
            .unwrap_or(Path::new("."))
            .clone_into(&mut self.directory);
        self
    }

    /// Returns the path of `files`. Fails if a link leads out of the directory of the case.
    pub(super) fn files_directory(&self, files: &Path) -> Result<PathBuf> {
        let path = self.directory.join(files);
        let real_path = path.canonicalize().at("read", &path)?;
        let directory = self.directory.canonicalize().at("read", &self.directory)?;
        if !real_path.starts_with(directory) {
            return Err(Error::invalid_input(format!(
                "`files` is outside of the directory of the case: {}",
                real_path.display()
            )));
        }
        Ok(real_path)
    }

    /// Returns the model of the case: `replay:PATH` with an absolute path, others unchanged.
    pub(super) fn resolved_model(&self) -> Option<String> {
        let model = self.model.clone()?;
        match model.strip_prefix("replay:") {
            Some(tape) if self.directory.join(tape).is_file() => {
                let path = std::path::absolute(self.directory.join(tape)).ok()?;
                Some(format!("replay:{}", path.display()))
            }
            _ => Some(model),
        }
    }
}

/// Returns whether a relative path does not lead out of its directory.
fn is_inside(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Returns the names of the tools that a recording calls, with underscores instead of dots.
pub(super) fn called_tools(recording: &Recording) -> Vec<String> {
    let calls = recording.calls.iter().flat_map(|call| &call.tool_calls);
    let names = calls.filter_map(|call| call.pointer("/function/name")?.as_str());
    names.map(str::to_owned).collect()
}
