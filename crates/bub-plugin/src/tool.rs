//! Tools of an external plugin. Tool calls and results have the format of MCP.

use std::{collections::VecDeque, sync::Arc};

use bub_kernel::{Error, ErrorKind, Result, Tool, ToolContext, ToolSpec, async_trait};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    codec::{self, Wire},
    descriptor::ToolDecl,
    process::PluginProcess,
};

/// Number of results whose texts are kept until they are shown.
const MAX_RENDERED: usize = 32;

/// A tool that an external plugin implements.
pub(crate) struct ExternalTool {
    plugin: Arc<PluginProcess>,
    spec: ToolSpec,
    /// Results of the last calls with their texts, until they are shown.
    rendered: Mutex<VecDeque<(Value, String)>>,
}

impl ExternalTool {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, entry: &ToolDecl) -> Self {
        Self {
            plugin: Arc::clone(plugin),
            spec: entry.to_spec(),
            rendered: Mutex::default(),
        }
    }
}

impl ToolDecl {
    /// Returns the description of the tool for the kernel.
    pub(crate) fn to_spec(&self) -> ToolSpec {
        let (name, description) = (self.name.as_str(), self.description.as_str());
        let mut spec = ToolSpec::new(name, description, self.input_schema.clone());
        spec.exposure = self.exposure();
        spec.deferred = self.has_annotation("deferred");
        spec.read_only = self.has_annotation("readOnlyHint");
        spec.output_schema.clone_from(&self.output_schema);
        spec
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

/// Returns the result of a tool call: `structuredContent` if present, otherwise the text of `content`. Also returns the
/// text.
///
/// The outer error reports an invalid response. The inner error is the error of the tool.
fn parse_result(answer: &Value) -> Result<Result<(Value, String)>> {
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
        Some(value) => Ok((value, text)),
        None => Ok((text.clone().into(), text)),
    })
}

#[async_trait]
impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value> {
        let turn = &context.turn;
        let mut state = context.state().encode();
        self.plugin.add_workspace(context.state(), &mut state);
        let params = json!({
            "name": self.spec.name,
            "arguments": arguments,
            "_meta": {
                "run_id": context.run_id(),
                "session_id": turn.session_id(),
                "state": state,
                "sender": turn.sender().encode(),
                "tape": turn.tape().tape().name().to_string(),
                "code_mode": context.code_mode,
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
        let parsed = parse_result(&answer);
        let (value, text) = parsed.unwrap_or_else(|error| {
            Err(self.plugin.plugin_error(ErrorKind::Tool, error.message()))
        })?;
        if !text.is_empty() && !value.is_string() && !context.code_mode {
            let mut rendered = self.rendered.lock();
            rendered.truncate(MAX_RENDERED - 1);
            rendered.push_front((value.clone(), text));
        }
        Ok(value)
    }

    fn render(&self, result: &Value) -> Option<String> {
        let mut rendered = self.rendered.lock();
        let index = rendered.iter().position(|(value, _)| value == result)?;
        rendered.remove(index).map(|(_, text)| text)
    }
}
