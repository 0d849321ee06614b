//! Tools of an external plugin. Tool calls and results have the format of MCP.

use std::sync::Arc;

use bub_kernel::{Error, ErrorKind, Result, Tool, ToolContext, ToolSpec, async_trait};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    codec::{self, Wire},
    descriptor::ToolDecl,
    process::PluginProcess,
};

/// A tool that an external plugin implements.
pub(crate) struct ExternalTool {
    plugin: Arc<PluginProcess>,
    spec: ToolSpec,
}

impl ExternalTool {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, entry: &ToolDecl) -> Self {
        let (name, description) = (entry.name.as_str(), entry.description.as_str());
        let mut spec = ToolSpec::new(name, description, entry.input_schema.clone());
        spec.exposure = entry.exposure();
        spec.deferred = entry.has_annotation("deferred");
        spec.read_only = entry.has_annotation("readOnlyHint");
        spec.output_schema.clone_from(&entry.output_schema);
        Self {
            plugin: Arc::clone(plugin),
            spec,
        }
    }
}

/// Result of `tools/call`, in the format of MCP.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolCallResponse {
    content: Option<Vec<Map<String, Value>>>,
    structured_content: Option<Value>,
    is_error: Option<bool>,
}

/// Returns the result of a tool call: `structuredContent` if present, otherwise the text of `content`.
///
/// The outer error reports an invalid response. The inner error is the error of the tool.
fn parse_result(answer: &Value) -> Result<Result<Value>> {
    let expected = "an object with `content`, a list of parts";
    let type_error = || codec::type_error(expected, answer);
    let response = ToolCallResponse::deserialize(answer).map_err(|_| type_error())?;
    if response.content.is_none() && response.structured_content.is_none() {
        return Err(type_error());
    }
    let parts = response.content.iter().flatten();
    let texts: Vec<_> = parts
        .filter_map(|part| part.get("text")?.as_str())
        .collect();
    let text = texts.join("\n");
    Ok(match response.structured_content {
        _ if response.is_error == Some(true) => Err(Error::new(ErrorKind::Tool, text)),
        Some(value) => Ok(value),
        None => Ok(text.into()),
    })
}

#[async_trait]
impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value> {
        let turn = &context.turn;
        let params = json!({
            "name": self.spec.name,
            "arguments": arguments,
            "_meta": {
                "run_id": context.run_id(),
                "session_id": turn.session_id(),
                "state": context.state().encode(),
                "sender": turn.sender().encode(),
            },
        });
        let limit = self.plugin.plugin_config.limits.tool;
        let answer = tokio::select! {
            answer = self.plugin.call("tools/call", &params, Some(turn), limit) => answer,
            () = context.cancel.cancelled() => {
                return Err(Error::new(ErrorKind::Cancelled, "the tool call was cancelled"));
            }
        };
        let answer = answer.map_err(|error| error.with_kind(ErrorKind::Tool))?;
        parse_result(&answer)
            .unwrap_or_else(|error| Err(self.plugin.plugin_error(ErrorKind::Tool, error.message())))
    }
}
