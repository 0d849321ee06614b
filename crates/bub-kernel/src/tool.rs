//! The contract of a tool, and what the hooks around a tool call see.
//!
//! [`tool`](macro@crate::tool) makes one of a function; `argument` has the types its arguments may have, `function` what
//! the attribute builds on, `registry` the tools of a framework.

use std::{sync::Arc, time::Duration};

use bub_tape::Tape;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    BoxFuture,
    error::{Error, Result},
    ids::TurnId,
    state::State,
    turn::Turn,
};

mod argument;
mod function;
mod registry;
mod step_requests;

pub use argument::ToolArgument;
pub use function::{
    Arguments, FunctionTool, ToolParameter, ToolResult, blocking, failure, schema, value,
};
pub(crate) use registry::register;
pub use step_requests::{StepRequest, StepRequests};

/// What a tool tells the model and the user about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name, with dots: `fs.read`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// Whether the model may call it; a tool that may not is a command for people.
    pub agent_use: bool,
    /// Whether it changes nothing: calls of such tools may run side by side.
    pub read_only: bool,
}

impl ToolSpec {
    /// The name as the model sees it: providers refuse dots.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// The names of its arguments in order, each with whether a call must have it.
    pub fn parameters(&self) -> Vec<(&str, bool)> {
        let required = self.parameters.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.is_some_and(|list| list.iter().any(|item| item == name));
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        properties
            .into_iter()
            .flatten()
            .map(|(name, _)| (name.as_str(), is_required(name)))
            .collect()
    }
}

/// What a tool works with.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The turn that the call belongs to.
    pub turn: Turn,
    /// Fires when the run that made the call ends, however it ends.
    pub cancel: CancellationToken,
    /// Who made the call.
    pub caller: ToolCaller,
    /// Collects what the tool asks of the agent loop; `None` if no loop runs.
    pub step_requests: Option<Arc<StepRequests>>,
    /// Receives output while the tool runs, for a user who waits for it.
    pub live_output: Option<mpsc::Sender<String>>,
}

/// Who makes a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCaller {
    /// A model.
    #[default]
    Model,
    /// A user, with a comma command.
    User,
}

impl ToolContext {
    /// The context of a call by a model, outside of an agent loop.
    pub fn new(turn: Turn) -> Self {
        Self {
            cancel: turn.cancel().clone(),
            turn,
            caller: ToolCaller::Model,
            step_requests: None,
            live_output: None,
        }
    }

    /// The run that the call belongs to.
    pub fn run_id(&self) -> &TurnId {
        self.turn.id()
    }

    /// The state of the turn.
    pub fn state(&self) -> &State {
        self.turn.state()
    }

    /// The session's tape.
    pub fn tape(&self) -> &Tape {
        self.turn.tape().tape()
    }
}

/// A tool.
pub trait Tool: Send + Sync + 'static {
    /// What it is.
    fn spec(&self) -> &ToolSpec;

    /// The arguments as a call is going to read them: `"yes"` is `true` where that is what is meant. Policy decides
    /// about these, and the call gets them; what is wrong with them may wait for the call.
    fn normalize(&self, arguments: Map<String, Value>) -> Result<Map<String, Value>> {
        Ok(arguments)
    }

    /// Runs it. A string result reaches the model as it is, anything else as JSON.
    fn call(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<Value>>;
}

/// A tool call the model asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The run it belongs to.
    pub run_id: TurnId,
    /// The tool, as the model named it.
    pub tool: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
}

/// What a tool call came to.
#[derive(Clone, Debug)]
pub struct ToolOutcome {
    /// The result, or why there is none.
    pub result: Result<Value, Error>,
    /// How long it took.
    pub duration: Duration,
}

/// What `before_tool_call` decides.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolDecision {
    /// Make the call, with other arguments if there are some.
    Proceed(Option<Map<String, Value>>),
    /// Make no call: this is its result.
    Replace(Value),
    /// Make no call: the model is told it was denied, and why.
    Deny(Option<String>),
}

impl ToolDecision {
    /// What the model is told when `tool` was denied.
    pub fn denial(tool: &str, reason: Option<&str>) -> Error {
        let default = || format!("Tool '{tool}' call denied by policy hook.");
        Error::new(
            crate::ErrorKind::Tool,
            reason.map_or_else(default, str::to_owned),
        )
    }
}

/// Runs a tool; a panic in it is an error like any other.
pub async fn run_tool(
    tool: &dyn Tool,
    arguments: Map<String, Value>,
    context: ToolContext,
) -> Result<Value> {
    crate::hooks::guard::run_within(None, || tool.call(arguments, context)).await?
}
