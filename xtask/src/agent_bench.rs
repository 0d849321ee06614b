//! `cargo xtask agent-bench`: lets a real model solve small tasks, and compares programs.

mod task;
mod trial;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use self::{task::Task, trial::Program};
use crate::{TaskResult, cargo_build, repository_root};

/// What to run.
#[derive(Debug, Default)]
pub(crate) struct AgentBenchOptions {
    model: String,
    api_base: Option<String>,
    bub: Option<PathBuf>,
    original: Option<PathBuf>,
    only: Vec<String>,
    limit: Option<usize>,
    results: Option<PathBuf>,
    timeout: Option<u64>,
    is_slow_included: bool,
}

impl AgentBenchOptions {
    /// Parses the arguments after `agent-bench`.
    pub(crate) fn parse(args: &[&str]) -> TaskResult<Self> {
        let (mut options, mut args) = (Self::default(), args.iter());
        while let Some(option) = args.next() {
            if *option == "--slow" {
                options.is_slow_included = true;
                continue;
            }
            let value = args
                .next()
                .ok_or_else(|| format!("{option} needs a value"))?;
            let value = (*value).to_owned();
            match *option {
                "--model" => options.model = value,
                "--api-base" => options.api_base = Some(value),
                "--bub" => options.bub = Some(value.into()),
                "--original" => options.original = Some(value.into()),
                "--only" => options.only.push(value),
                "--limit" => options.limit = Some(value.parse()?),
                "--results" => options.results = Some(value.into()),
                "--timeout" => options.timeout = Some(value.parse()?),
                _ => return Err(format!("unknown option {option}").into()),
            }
        }
        if options.model.is_empty() {
            return Err("missing model: pass `--model provider:model`".into());
        }
        Ok(options)
    }

    /// Returns the programs to compare.
    fn programs(&self) -> TaskResult<Vec<Program>> {
        let bub = match &self.bub {
            Some(path) => path.clone(),
            None => build_bub()?,
        };
        let original = self
            .original
            .iter()
            .map(|venv| ("original", venv.join("bin/bub")));
        let all = std::iter::once(("bub", bub)).chain(original);
        Ok(all
            .map(|(name, executable)| Program {
                name: name.to_owned(),
                needs_trust: name == "bub",
                executable,
                model: self.model.clone(),
                api_base: self.api_base.clone(),
                timeout: Duration::from_secs(self.timeout.unwrap_or(600)),
            })
            .collect())
    }

    fn is_selected(&self, task: &Task) -> bool {
        let is_named = |name: &String| *name == task.name || *name == task.group;
        if self.only.is_empty() {
            !task.is_slow || self.is_slow_included
        } else {
            self.only.iter().any(is_named)
        }
    }
}

/// Runs the selected tasks that have no result yet, and prints the table of all results.
pub(crate) fn run(options: &AgentBenchOptions) -> TaskResult<()> {
    let directory = repository_root().join("target/agent-bench");
    fs::create_dir_all(&directory)?;
    let file = options.results.clone();
    let file = file.unwrap_or_else(|| directory.join("results.jsonl"));
    let programs = options.programs()?;
    let mut tasks = Task::read_all(&repository_root().join("xtask/agent-bench/tasks"))?;
    tasks.retain(|task| options.is_selected(task));
    tasks.truncate(options.limit.unwrap_or(usize::MAX));
    let mut results = read_results(&file);
    for task in &tasks {
        for program in &programs {
            if find(&results, program, &task.name).is_some() {
                continue;
            }
            let result = program.run_task(task, &directory.join(&program.name))?;
            let outcome = if result["success"] == true {
                "solved".to_owned()
            } else {
                result["problems"].to_string()
            };
            eprintln!(
                "{:20} {:9} {:5.0} s  {outcome}",
                task.name,
                program.name,
                result["seconds"].as_f64().unwrap_or(0.0)
            );
            let mut log = OpenOptions::new().create(true).append(true).open(&file)?;
            writeln!(log, "{result}")?;
            results.push(result);
        }
    }
    println!("{}", table(&programs, &tasks, &results));
    Ok(())
}

/// Builds `bub` in release mode and returns its path.
fn build_bub() -> TaskResult<PathBuf> {
    let built = cargo_build(&["build", "--release", "-p", "bub-cli", "--bin", "bub"])?;
    let path = built
        .iter()
        .filter_map(|message| message["executable"].as_str())
        .next_back();
    path.map(PathBuf::from)
        .ok_or_else(|| "cargo built no program".into())
}

fn read_results(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Finds the newest result of a program for a task.
fn find<'a>(results: &'a [Value], program: &Program, task: &str) -> Option<&'a Value> {
    results.iter().rev().find(|result| {
        result["program"] == *program.name
            && result["model"] == *program.model
            && result["task"] == task
    })
}

/// Formats the results as a Markdown table: one line per task, and the sums over tasks that all programs ran.
fn table(programs: &[Program], tasks: &[Task], results: &[Value]) -> String {
    let mut text = "| Task | Group |".to_owned();
    for program in programs {
        let _ = write!(
            text,
            " {0}: solved | steps | prompt tokens | cached | completion tokens | seconds |",
            program.name
        );
    }
    let _ = write!(text, "\n|---|---|{}", "---|".repeat(6 * programs.len()));
    let is_paired = |task: &&Task| {
        programs
            .iter()
            .all(|program| find(results, program, &task.name).is_some())
    };
    let paired: Vec<&Task> = tasks.iter().filter(is_paired).collect();
    for task in &paired {
        let _ = write!(text, "\n| {} | {} |", task.name, task.group);
        for result in programs
            .iter()
            .filter_map(|program| find(results, program, &task.name))
        {
            let _ = write!(text, "{}", cells(&[result]));
        }
    }
    let _ = write!(text, "\n| {} tasks | |", paired.len());
    for program in programs {
        let results: Vec<&Value> = paired
            .iter()
            .filter_map(|task| find(results, program, &task.name))
            .collect();
        text.push_str(&cells(&results));
    }
    text.push('\n');
    for program in programs {
        let results: Vec<&Value> = paired
            .iter()
            .filter_map(|task| find(results, program, &task.name))
            .collect();
        let sum = |key: &str| {
            results
                .iter()
                .filter_map(|result| result[key].as_u64())
                .sum::<u64>()
        };
        let (later, cached) = (sum("later_prompt_tokens"), sum("later_cached_tokens"));
        let quotes: BTreeSet<&str> = results
            .iter()
            .filter(|result| result["quotes"] != Value::Array(Vec::new()))
            .filter_map(|result| result["task"].as_str())
            .collect();
        let _ = write!(
            text,
            "\n{}: from the second step on, {} of {later} prompt tokens came from the cache ({} %). Answers that quote the prompt: {}.\n",
            program.name,
            cached,
            100 * cached / later.max(1),
            quotes.len(),
        );
    }
    text
}

/// Formats the sums of results as cells of the table.
fn cells(results: &[&Value]) -> String {
    let sum = |key: &str| {
        results
            .iter()
            .filter_map(|result| result[key].as_u64())
            .sum::<u64>()
    };
    let solved = results
        .iter()
        .filter(|result| result["success"] == true)
        .count();
    let solved = match results {
        [_] if solved == 1 => "yes".to_owned(),
        [_] => "no".to_owned(),
        _ => solved.to_string(),
    };
    let seconds: f64 = results
        .iter()
        .filter_map(|result| result["seconds"].as_f64())
        .sum();
    let keys = [
        "steps",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
    ];
    let [steps, prompt, cached, completion] = keys.map(sum);
    format!(" {solved} | {steps} | {prompt} | {cached} | {completion} | {seconds:.0} |")
}
