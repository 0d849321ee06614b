//! One run of a task with one program, and what its tape says about it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::task::Task;

/// Texts that a program adds to prompts. An answer that contains one quotes the program instead of answering.
const MARKUP: [&str; 9] = [
    "<handoff",
    "[Anchor created",
    "<available_skills",
    "<general_instruct",
    "<response_instruct",
    "<environment>",
    "<deferred_tools",
    "---Date:",
    "sender_id=",
];

/// A program to measure and the model that it uses.
#[derive(Debug)]
pub(crate) struct Program {
    /// A name for tables and results: `bub` or `original`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    pub(crate) model: String,
    pub(crate) api_base: Option<String>,
    pub(crate) timeout: Duration,
    /// Whether it uses the skills of a workspace only after `bub trust`.
    pub(crate) needs_trust: bool,
}

impl Program {
    /// Runs a task in a directory, which is removed first. The workspace has the same path in all tasks, so that
    /// servers can cache the system prompt.
    pub(crate) fn run_task(&self, task: &Task, directory: &Path) -> io::Result<Value> {
        let _ = fs::remove_dir_all(directory);
        let (workspace, home) = (directory.join("workspace"), directory.join("home"));
        fs::create_dir_all(&workspace)?;
        fs::create_dir_all(&home)?;
        task.write_files(&workspace)?;
        if self.needs_trust {
            let mut command = self.command(&workspace, &home);
            command.arg("trust").stdout(Stdio::null()).status()?;
        }
        let started = Instant::now();
        let mut answer = String::new();
        let mut is_late = false;
        for prompt in &task.prompts {
            let output = self.run_prompt(prompt, &workspace, &home)?;
            is_late |= output.is_none();
            let Some(output) = output else { break };
            let stdout = String::from_utf8_lossy(&output.stdout);
            // The Python version prints the address of the reply first.
            let reply = stdout.strip_prefix("[cli:local]\n").unwrap_or(&stdout);
            reply.trim().clone_into(&mut answer);
        }
        let seconds = started.elapsed().as_secs_f64();
        let tape = TapeFigures::read(&home.join(".bub/tapes"));
        let mut problems = task.grade(&workspace, &answer, &tape.calls);
        if is_late {
            problems.push("timeout".to_owned());
        }
        let quotes: Vec<_> = MARKUP
            .iter()
            .filter(|text| answer.contains(**text))
            .collect();
        Ok(json!({
            "program": self.name, "model": self.model, "task": task.name, "group": task.group,
            "success": problems.is_empty(), "problems": problems, "quotes": quotes, "seconds": seconds,
            "steps": tape.steps, "calls": tape.calls, "prompt_tokens": tape.prompt_tokens,
            "cached_tokens": tape.cached_tokens, "later_prompt_tokens": tape.later_prompt_tokens,
            "later_cached_tokens": tape.later_cached_tokens, "completion_tokens": tape.completion_tokens,
            "answer": answer,
        }))
    }

    /// Returns a command with the settings of the benchmark.
    fn command(&self, workspace: &Path, home: &Path) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(workspace)
            .env("HOME", home)
            .env("BUB_HOME", home.join(".bub"))
            .env("BUB_MODEL", &self.model)
            // bub redacts its keys, so the key must not occur in a path or a text.
            .env("BUB_API_KEY", "key-for-a-local-server")
            .env("BUB_MAX_TOKENS", "400")
            .env("BUB_MAX_STEPS", "8")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        if let Some(api_base) = &self.api_base {
            command.env("BUB_API_BASE", api_base);
        }
        command
    }

    /// Sends one message. Returns `None` if the program does not end in time.
    fn run_prompt(
        &self,
        prompt: &str,
        workspace: &Path,
        home: &Path,
    ) -> io::Result<Option<Output>> {
        let mut command = self.command(workspace, home);
        command.args(["run", prompt]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let started = Instant::now();
        while child.try_wait()?.is_none() {
            if started.elapsed() > self.timeout {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
        child.wait_with_output().map(Some)
    }
}

/// What the tape of a task says. All programs write the same format.
#[derive(Debug, Default)]
struct TapeFigures {
    /// The number of model calls.
    steps: u64,
    /// The names of the called tools.
    calls: Vec<String>,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    /// Prompt tokens from the second step on.
    later_prompt_tokens: u64,
    later_cached_tokens: u64,
}

impl TapeFigures {
    fn read(tapes: &Path) -> Self {
        let files = fs::read_dir(tapes).into_iter().flatten().flatten();
        let files = files.map(|file| file.path());
        let tapes = files.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
        let mut figures = Self::default();
        for path in tapes {
            for line in fs::read_to_string(path).unwrap_or_default().lines() {
                figures.add(&serde_json::from_str(line).unwrap_or_default());
            }
        }
        figures
    }

    fn add(&mut self, entry: &Value) {
        let (payload, data) = (&entry["payload"], &entry["payload"]["data"]);
        let calls = payload["calls"].as_array().into_iter().flatten();
        let names = calls.filter_map(|call| call["function"]["name"].as_str());
        self.calls.extend(names.map(str::to_owned));
        if entry["kind"] != "event" || payload["name"] != "run" {
            return;
        }
        let count = |path: &str| {
            data["usage"]
                .pointer(path)
                .and_then(Value::as_u64)
                .unwrap_or(0)
        };
        let (prompt, cached) = (
            count("/prompt_tokens"),
            count("/prompt_tokens_details/cached_tokens"),
        );
        if self.steps > 0 {
            self.later_prompt_tokens += prompt;
            self.later_cached_tokens += cached;
        }
        self.steps += 1;
        self.prompt_tokens += prompt;
        self.cached_tokens += cached;
        self.completion_tokens += count("/completion_tokens");
    }
}
