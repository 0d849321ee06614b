//! A guard: a plugin that decides about tool calls.
//!
//! `before_tool_call` can let a call proceed, change its arguments, replace its result or deny it. If the hook fails, bub
//! denies the call.
//!
//! ```console
//! $ cargo run --example guard -- run ",bash rm -rf build"
//! ```

use std::process::ExitCode;

use bub::prelude::*;

struct NoDeletion;

#[hooks]
impl NoDeletion {
    fn before_tool_call(&self, call: &ToolCall) -> Option<ToolDecision> {
        let command = call.arguments.get("command")?.as_str()?;
        let deletes = command.split_whitespace().any(|word| word == "rm");
        deletes.then(|| ToolDecision::Deny(Some("move files to `trash/` instead".to_owned())))
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("no-deletion", NoDeletion).main()
}

#[cfg(test)]
mod tests {
    use bub::testing;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_denied_call_does_not_run_and_the_model_sees_the_reason() {
        let turn = testing::turn("Remove the build directory.")
            .plugin("no-deletion", NoDeletion)
            .model_calls("bash", json!({"command": "rm -rf build"}))
            .model_calls("bash", json!({"command": "echo kept"}))
            .model_says("I left it alone.")
            .run()
            .await
            .unwrap();
        let results = turn.tool_results();
        assert!(
            results[0].contains("move files to `trash/` instead"),
            "{results:?}"
        );
        assert!(results[1].contains("kept"), "{results:?}");
        assert_eq!(turn.reply(), "I left it alone.");
    }
}
