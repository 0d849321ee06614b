//! The tool `todo`: the list of what is left to do in a session. The list is on the tape.

use bub_kernel::{Error, Result, ToolContext, tools};
use bub_tape::Entry;
use serde_json::{Value, json};

use super::object_schema;
use crate::truncate;

/// The tape event with the items of the list.
const TODO_EVENT: &str = "todo";
const MAX_ITEMS: usize = 50;
const MAX_ITEM_CHARS: usize = 200;
/// The marks of an item that is open, in progress, or done.
const MARKS: [&str; 3] = ["[ ]", "[~]", "[x]"];

/// The tool for the todo list.
pub(super) struct TodoTools;

#[tools(crate = bub_kernel)]
impl TodoTools {
    /// Set or show the todo list, for work with several steps. Update it after each step.
    #[tool(name = "todo", render = render_list, output = list_schema)]
    async fn todo(
        &self,
        context: &ToolContext,
        /// All items, each marked `[ ]`, `[~]` (in progress) or `[x]`
        items: Option<Vec<String>>,
    ) -> Result<Value> {
        let tape = context.turn.tape();
        let Some(items) = items else {
            return Ok(json!({"items": tape.summary().await?.todo}));
        };
        if items.len() > MAX_ITEMS {
            let text = format!("too many items: the maximum is {MAX_ITEMS}; combine some");
            return Err(Error::invalid_input(text));
        }
        let items: Vec<String> = items.iter().map(|item| normalize_item(item)).collect();
        let event = Entry::event(TODO_EVENT, Some(json!({"items": items})));
        let event = tape.with_run_id(event.exclude_from_context());
        tape.append(vec![event]).await?;
        tape.invalidate_summary();
        Ok(json!({"items": items}))
    }
}

/// Returns an item in one line that starts with a mark.
fn normalize_item(item: &str) -> String {
    let text = item.trim().trim_start_matches(['-', '*']).trim_start();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = truncate(&text, MAX_ITEM_CHARS);
    match text.replacen("[X]", "[x]", 1) {
        text if MARKS.iter().any(|mark| text.starts_with(mark)) => text,
        text => format!("[ ] {text}"),
    }
}

fn render_list(result: &Value) -> Option<String> {
    let items = result.get("items")?.as_array()?;
    let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
    Some(if items.is_empty() {
        "(the todo list is empty)".to_owned()
    } else {
        items.join("\n")
    })
}

fn list_schema() -> Value {
    object_schema(&json!({"items": {"type": "array", "items": {"type": "string"}}}))
}
