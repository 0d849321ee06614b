//! Tools: functions that the model can call, and the types of the hooks around a tool call.
//!
//! Write a tool with the attribute [`tool`](macro@crate::tool) on a function. The module `argument` has the types of
//! its arguments, and `function` has the code that the generated tool uses.

use std::{sync::Arc, time::Duration};

use bub_tape::Tape;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    async_trait,
    error::{Error, Result},
    ids::TurnId,
    state::State,
    turn::Turn,
};

mod argument;
mod function;
mod step_requests;

pub use argument::ToolArgument;
#[doc(hidden)]
pub use function::NoTools;
pub use function::{
    Arguments, FunctionTool, ToolParameter, ToolResult, parameters_schema, result_to_value,
    run_blocking, tool_error,
};
pub use step_requests::{StepRequest, StepRequests};

/// The description of a tool for the model and the user.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name, which may contain dots: `fs.read`.
    pub name: String,
    /// What the tool does and when to use it. The model reads this text.
    pub description: String,
    /// The JSON Schema of the arguments. Its type is `object`.
    pub parameters: Value,
    /// Whether the model can call the tool. If not, only users can, with a comma command.
    pub agent_use: bool,
    /// Whether the tool changes nothing. Calls of read-only tools may run concurrently.
    pub read_only: bool,
}

impl ToolSpec {
    /// Returns the name that the model sees: providers reject dots, so they become underscores.
    pub fn model_name(&self) -> String {
        self.name.replace('.', "_")
    }

    /// Returns the names of the arguments in the order of the schema, each with whether it is required.
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

/// The context of a tool call.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The turn that the call belongs to.
    pub turn: Turn,
    /// Cancelled when the run that made the call ends for any reason.
    pub cancel: CancellationToken,
    /// Whether the model or a user made the call.
    pub caller: ToolCaller,
    /// Collects requests to the agent loop. `None` if no loop is running.
    pub step_requests: Option<Arc<StepRequests>>,
    /// Receives output while the tool runs, to show it to a waiting user. `None` if no output is shown before the call
    /// ends.
    pub live_output: Option<mpsc::Sender<String>>,
}

/// The caller of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolCaller {
    /// A model.
    #[default]
    Model,
    /// A user, with a comma command.
    User,
}

impl ToolContext {
    /// Creates the context of a tool call by a model, outside of an agent loop.
    pub fn new(turn: Turn) -> Self {
        Self {
            cancel: turn.cancel_token().clone(),
            turn,
            caller: ToolCaller::Model,
            step_requests: None,
            live_output: None,
        }
    }

    /// Returns the id of the run that the call belongs to.
    pub fn run_id(&self) -> &TurnId {
        self.turn.id()
    }

    /// Returns the state of the turn.
    pub fn state(&self) -> &State {
        self.turn.state()
    }

    /// Returns the session's tape.
    pub fn tape(&self) -> &Tape {
        self.turn.tape().tape()
    }
}

/// A function that the model can call. The attribute [`tool`](macro@crate::tool) generates an implementation.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Returns the description of the tool.
    fn spec(&self) -> &ToolSpec;

    /// Converts the arguments to their canonical form, such as `"yes"` to `true` for a boolean. The policy is evaluated
    /// for the converted arguments, and the call gets them. Invalid arguments may be left for `call` to report.
    fn normalize_arguments(&self, arguments: Map<String, Value>) -> Result<Map<String, Value>> {
        Ok(arguments)
    }

    /// Runs the tool. The model sees a string result unchanged and any other result as JSON.
    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value>;
}

/// A tool call that the model requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// The run that the call belongs to.
    pub run_id: TurnId,
    /// The name of the tool, as the model wrote it.
    pub tool: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
}

/// The outcome of a tool call.
#[derive(Clone, Debug)]
pub struct ToolOutcome {
    /// The result, or the error.
    pub result: Result<Value, Error>,
    /// The duration of the call.
    pub duration: Duration,
}

/// The decision of `before_tool_call`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolDecision {
    /// Make the call, with these arguments if given.
    Proceed(Option<Map<String, Value>>),
    /// Skip the call and use this result.
    Replace(Value),
    /// Deny the call and report the denial to the model, with an optional reason.
    Deny(Option<String>),
}

impl ToolDecision {
    /// Returns the error that the model sees if a call of `tool` was denied.
    pub fn denial_error(tool: &str, reason: Option<&str>) -> Error {
        let default = || format!("Tool '{tool}' call denied by policy hook.");
        Error::new(
            crate::ErrorKind::Tool,
            reason.map_or_else(default, str::to_owned),
        )
    }
}

/// Runs a tool and converts a panic into an error. The call has no time limit.
pub async fn run_tool(
    tool: &dyn Tool,
    arguments: Map<String, Value>,
    context: ToolContext,
) -> Result<Value> {
    crate::hooks::guard::run_with_limit(None, || tool.call(arguments, context)).await?
}
