//! The short form of `cargo xtask agent-bench`: a scripted model solves some of its tasks.

use std::{path::PathBuf, time::Duration};

use bub_testkit::model::{ModelServer, Reply};
use serde_json::Value;

use crate::sandbox::{Sandbox, bub};

#[path = "../../../../xtask/src/agent_bench/task.rs"]
mod task;
#[path = "../../../../xtask/src/agent_bench/trial.rs"]
mod trial;

use task::Task;
use trial::Program;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../xtask/agent-bench/tasks")
}

/// Returns the answers of the scripted model, one per model call.
fn script(task: &Task) -> Vec<Reply> {
    let file = directory().join(format!("{}.json", task.name));
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let answer = |step: &Value| match step["say"].as_str() {
        Some(text) => Reply::text(text),
        None => Reply::new().call(
            "call_1",
            step["call"].as_str().unwrap(),
            &step["arguments"].to_string(),
        ),
    };
    let steps = file["script"].as_array().into_iter().flatten();
    steps.map(answer).collect()
}

#[test]
fn a_scripted_model_solves_tasks_of_the_agent_benchmark() {
    let tasks = Task::read_all(&directory()).unwrap();
    assert!(tasks.len() >= 40, "{} tasks", tasks.len());
    let mut groups = Vec::new();
    for task in tasks {
        let script = script(&task);
        if script.is_empty() {
            continue;
        }
        assert!(!task.is_slow, "{}", task.name);
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        let steps = script.len() as u64;
        for reply in script {
            server.script(reply);
        }
        let program = Program {
            name: "bub".to_owned(),
            executable: bub(),
            model: "openai:gpt-4o".to_owned(),
            api_base: Some(format!("{}/v1", server.url())),
            timeout: Duration::from_mins(1),
            needs_trust: true,
        };
        let result = program
            .run_task(&task, &sandbox.workspace().join("trial"))
            .unwrap();
        assert_eq!(
            result["problems"],
            Value::Array(Vec::new()),
            "{}: {result}",
            task.name
        );
        assert_eq!(server.requests().len() as u64, steps, "{}", task.name);
        groups.push(task.group);
    }
    groups.dedup();
    assert!(groups.len() >= 8, "{groups:?}");
}

#[test]
fn no_task_is_solved_by_doing_nothing() {
    for task in Task::read_all(&directory()).unwrap() {
        let sandbox = Sandbox::new();
        task.write_files(&sandbox.workspace()).unwrap();
        let problems = task.grade(&sandbox.workspace(), "I did nothing.", &[]);
        assert!(!problems.is_empty(), "{}", task.name);
    }
}
