//! The tools of a plugin, in MCP's shapes.

use std::sync::Arc;

use bub_kernel::{BoxFuture, Error, ErrorKind, Result, Tool, ToolContext, ToolSpec};
use serde_json::{Map, Value, json};

use crate::{
    callbacks::{self, Context},
    codec,
    descriptor::ToolEntry,
    external::External,
    peer::Arrival,
};

/// A tool of a plugin.
pub(crate) struct ExternalTool {
    plugin: Arc<External>,
    spec: ToolSpec,
}

impl ExternalTool {
    pub(crate) fn new(plugin: &Arc<External>, entry: &ToolEntry) -> Self {
        let spec = ToolSpec {
            name: entry.name.clone(),
            description: entry.description.clone(),
            parameters: entry.input_schema.clone(),
            agent_use: !entry.is_for_people(),
            read_only: entry.is_read_only(),
        };
        Self { plugin: Arc::clone(plugin), spec }
    }

    async fn run(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value> {
        let failed = |text: String| Error::new(ErrorKind::Tool, text);
        let Some(peer) = self.plugin.reach().await? else {
            return Err(failed(format!(
                "the plugin {} failed too often and is left alone",
                self.plugin.name()
            )));
        };
        let params = json!({
            "name": self.spec.name,
            "arguments": arguments,
            "_meta": {
                "run_id": context.run_id,
                "session_id": context.state.get_str("session_id"),
                "state": codec::Argument::write(&context.state),
                "sender": codec::sender(&context.state.sender()),
            },
        });
        let mut asked = peer.ask("tools/call", &params, 0);
        let limit = self.plugin.setup.limits.tool;
        let late = tokio::time::sleep(limit);
        tokio::pin!(late);
        loop {
            let arrival = tokio::select! {
                arrival = asked.next() => arrival,
                () = context.cancel.cancelled() => {
                    return Err(Error::new(ErrorKind::Cancelled, "the tool call was cancelled"));
                }
                () = &mut late => {
                    drop(asked);
                    self.plugin.note_late(&peer).await;
                    return Err(failed(format!("no answer within {} s", limit.as_secs_f32())));
                }
            };
            match arrival {
                Arrival::Response(answer) => {
                    asked.is_over = true;
                    let answer = answer.map_err(|error| error.with_kind(ErrorKind::Tool))?;
                    self.plugin.note_success();
                    return result(answer);
                }
                Arrival::Question { id, method, params } => {
                    let context = Context::of(&self.plugin, Some(&context.state));
                    callbacks::spawn(&peer, id, method, params, context);
                }
                Arrival::Event(_) => {}
            }
        }
    }
}

/// `structuredContent` if there is any, else the text of `content`.
fn result(answer: Value) -> Result<Value> {
    let Value::Object(mut answer) = answer else {
        return Err(codec::wrong("an object with `content`", &answer).with_kind(ErrorKind::Tool));
    };
    let parts = answer.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<_> = parts.filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
    let text = texts.join("\n");
    if answer.get("isError").and_then(Value::as_bool).unwrap_or(false) {
        return Err(Error::new(ErrorKind::Tool, text));
    }
    let structured = answer.remove("structuredContent").filter(|value| !value.is_null());
    Ok(structured.unwrap_or_else(|| text.into()))
}

impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> BoxFuture<'_, Result<Value>> {
        Box::pin(self.run(arguments, context))
    }
}
