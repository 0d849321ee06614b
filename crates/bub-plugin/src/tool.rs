//! Tools of an external plugin. Tool calls and results have the format of MCP.

use std::sync::Arc;

use bub_kernel::{BoxFuture, Error, ErrorKind, Result, Tool, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tracing::Instrument as _;

use crate::{
    callbacks::{self, CallContext},
    codec,
    descriptor::ToolDecl,
    peer::IncomingMessage,
    process::PluginProcess,
};

/// A tool that an external plugin implements.
pub(crate) struct ExternalTool {
    plugin: Arc<PluginProcess>,
    spec: ToolSpec,
}

impl ExternalTool {
    pub(crate) fn new(plugin: &Arc<PluginProcess>, entry: &ToolDecl) -> Self {
        let spec = ToolSpec {
            name: entry.name.clone(),
            description: entry.description.clone(),
            parameters: entry.input_schema.clone(),
            agent_use: !entry.is_command_only(),
            read_only: entry.is_read_only(),
        };
        Self {
            plugin: Arc::clone(plugin),
            spec,
        }
    }

    async fn call_plugin(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> Result<Value> {
        let span = self.plugin.call_span(None);
        self.exchange_messages(arguments, context)
            .instrument(span)
            .await
    }

    async fn exchange_messages(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> Result<Value> {
        let limit = self.plugin.plugin_config.limits.tool;
        let as_tool_error = |error: Error| error.with_kind(ErrorKind::Tool);
        let timeout = tokio::time::sleep(limit);
        tokio::pin!(timeout);
        let peer = self
            .plugin
            .connect(Some(limit))
            .await
            .map_err(as_tool_error)?;
        let params = json!({
            "name": self.spec.name,
            "arguments": arguments,
            "_meta": {
                "run_id": context.run_id(),
                "session_id": context.turn.session_id(),
                "state": codec::ArgumentCodec::encode(context.state()),
                "sender": codec::encode_sender(context.turn.sender()),
            },
        });
        let mut request = peer.send_request("tools/call", &params, 0);
        loop {
            let incoming = tokio::select! {
                incoming = request.next_message() => incoming,
                () = context.cancel.cancelled() => {
                    return Err(Error::new(ErrorKind::Cancelled, "the tool call was cancelled"));
                }
                () = &mut timeout => {
                    drop(request);
                    self.plugin.handle_timeout(&peer).await;
                    return Err(as_tool_error(self.plugin.timeout_error(limit)));
                }
            };
            match incoming {
                IncomingMessage::Response(answer) => {
                    request.is_over = true;
                    let answer = answer.map_err(as_tool_error)?;
                    self.plugin.record_success();
                    let result = parse_result(&answer);
                    return result.unwrap_or_else(|error| {
                        Err(self.plugin.plugin_error(ErrorKind::Tool, error.message()))
                    });
                }
                IncomingMessage::Question { id, method, params } => {
                    let context = CallContext::new(&self.plugin, Some(&context.turn));
                    callbacks::spawn_answer(&peer, id, method, params, context);
                }
                IncomingMessage::Event(_) => {}
            }
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
    let response = ToolCallResponse::deserialize(answer).ok();
    let response = response
        .filter(|response| response.content.is_some() || response.structured_content.is_some());
    let response = response
        .ok_or_else(|| codec::type_error("an object with `content`, a list of parts", answer))?;
    let parts = response.content.iter().flatten();
    let texts: Vec<_> = parts
        .filter_map(|part| part.get("text").and_then(Value::as_str))
        .collect();
    let text = texts.join("\n");
    if response.is_error == Some(true) {
        return Ok(Err(Error::new(ErrorKind::Tool, text)));
    }
    Ok(Ok(response
        .structured_content
        .unwrap_or_else(|| text.into())))
}

impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<Value>> {
        Box::pin(self.call_plugin(arguments, context))
    }
}
