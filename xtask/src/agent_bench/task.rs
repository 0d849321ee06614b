//! The tasks of the agent benchmark and how their results are graded.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde_json::{Map, Value};

/// A task: files, prompts, and what is expected afterwards.
#[derive(Debug)]
pub(crate) struct Task {
    /// The name of its file, without the extension.
    pub(crate) name: String,
    /// The ability that it needs, such as `edits`.
    pub(crate) group: String,
    /// The messages of the user, in order. Each one starts a turn of the same session.
    pub(crate) prompts: Vec<String>,
    /// The files of the workspace.
    files: BTreeMap<String, String>,
    expect: Value,
    /// Whether the task needs many tokens, so that it runs only on request.
    pub(crate) is_slow: bool,
}

impl Task {
    /// Reads all tasks of a directory, sorted by name.
    pub(crate) fn read_all(directory: &Path) -> io::Result<Vec<Self>> {
        let mut tasks = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let value: Value = serde_json::from_slice(&fs::read(&path)?)?;
            tasks.push(Self::from_value(&name, &value));
        }
        tasks.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(tasks)
    }

    fn from_value(name: &str, value: &Value) -> Self {
        let files = value["files"].as_object().into_iter().flatten();
        Self {
            name: name.to_owned(),
            group: value["group"].as_str().unwrap_or_default().to_owned(),
            prompts: items(&value["prompts"]).iter().map(content).collect(),
            files: files
                .map(|(path, text)| (path.clone(), content(text)))
                .collect(),
            expect: value["expect"].clone(),
            is_slow: value["slow"] == true,
        }
    }

    /// Creates the workspace of the task.
    pub(crate) fn write_files(&self, workspace: &Path) -> io::Result<()> {
        for (path, text) in &self.files {
            let path = workspace.join(path);
            fs::create_dir_all(path.parent().unwrap_or(workspace))?;
            fs::write(path, text)?;
        }
        Ok(())
    }

    /// Returns what is wrong with the result: nothing if the task is solved. `calls` are the tools that were called.
    pub(crate) fn grade(&self, workspace: &Path, answer: &str, calls: &[String]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut require = |is_met: bool, problem: String| {
            if !is_met {
                problems.push(problem);
            }
        };
        let answer = answer.to_lowercase();
        for text in words(&self.expect["answer"]) {
            require(
                answer.contains(&text.to_lowercase()),
                format!("answer lacks {text:?}"),
            );
        }
        for text in words(&self.expect["answer_lacks"]) {
            require(
                !answer.contains(&text.to_lowercase()),
                format!("answer has {text:?}"),
            );
        }
        for name in words(&self.expect["calls"]) {
            require(
                calls.iter().any(|call| call == name),
                format!("{name} was not called"),
            );
        }
        let read = |path: &str| fs::read_to_string(workspace.join(path)).unwrap_or_default();
        for (path, text) in object(&self.expect["file"]) {
            let is_same = read(path).trim_end() == text.as_str().unwrap_or_default();
            require(is_same, format!("{path} has other content"));
        }
        for (path, texts) in object(&self.expect["file_contains"]) {
            let all = words(texts).all(|text| read(path).contains(text));
            require(all, format!("{path} lacks text"));
        }
        for (path, texts) in object(&self.expect["file_lacks"]) {
            let none = words(texts).all(|text| !read(path).contains(text));
            require(none, format!("{path} has unwanted text"));
        }
        for path in words(&self.expect["missing"]) {
            require(!workspace.join(path).exists(), format!("{path} exists"));
        }
        problems
    }
}

/// Returns a text: a string, or a list of strings and `{repeat, count}`, where `{}` is the number of the repetition.
fn content(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(content).collect(),
        part => {
            let (text, count) = (part["repeat"].as_str(), part["count"].as_u64());
            let numbers = 1..=count.unwrap_or_default();
            let repeat = |number: u64| text.unwrap_or_default().replace("{}", &number.to_string());
            numbers.map(repeat).collect()
        }
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn words(value: &Value) -> impl Iterator<Item = &str> {
    items(value).iter().filter_map(Value::as_str)
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().map(Map::iter).into_iter().flatten()
}
