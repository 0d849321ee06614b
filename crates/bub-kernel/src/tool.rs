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
    Arguments, FunctionTool, Renderer, ToolParameter, ToolResult, parameters_schema,
    result_to_value, run_blocking, tool_error,
};
pub use step_requests::{StepRequest, StepRequests};

/// The description of a tool for the model and the user.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The name, which may contain dots: `fs.read`.
    pub name: String,
    /// What the tool does and when to use it. The model reads this text.
    pub description: String,
    /// The JSON Schema of the arguments. Its type is `object`.
    pub parameters: Value,
    /// Who can call the tool. Users can call every tool with a comma command.
    pub exposure: ToolExposure,
    /// Whether the model sees only the name of the tool until it loads the description with `tool.describe`.
    pub deferred: bool,
    /// Whether the tool changes nothing. Calls of read-only tools may run concurrently.
    pub read_only: bool,
    /// The JSON Schema of the result, if it is known. Code that calls the tool sees it.
    pub output_schema: Option<Value>,
    /// Other names that arguments may have, each with the name in `parameters`.
    pub aliases: Vec<(String, String)>,
}

/// Who can call a tool besides users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ToolExposure {
    /// The model. In code mode, only code that the model runs.
    #[default]
    Auto,
    /// The model, also in code mode. Never code.
    Direct,
    /// Only code that the model runs in code mode.
    Code,
    /// Only users.
    Command,
}

impl ToolExposure {
    /// Returns the name of the exposure, such as `auto`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns whether a model can call the tool outside of code mode.
    pub fn is_for_model(self) -> bool {
        matches!(self, Self::Auto | Self::Direct)
    }

    /// Returns whether code can call the tool in code mode.
    pub fn is_for_code(self) -> bool {
        matches!(self, Self::Auto | Self::Code)
    }
}

impl ToolSpec {
    /// Describes a tool that the model can call and that may change something.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: impl Into<Value>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters: parameters.into(),
            exposure: ToolExposure::Auto,
            deferred: false,
            read_only: false,
            output_schema: None,
            aliases: Vec::new(),
        }
    }

    /// Returns the name of an argument. `name` may be an alias of it.
    pub fn argument_name<'a>(&'a self, name: &'a str) -> &'a str {
        let mut aliases = self.aliases.iter();
        let alias = aliases.find(|(alias, _)| alias == name);
        alias.map_or(name, |(_, argument)| argument)
    }

    /// Renames arguments that have an alias as their name, unless both names are used.
    pub fn resolve_aliases(&self, arguments: Map<String, Value>) -> Map<String, Value> {
        let is_used = |name: &str| arguments.contains_key(name);
        if !self.aliases.iter().any(|(alias, _)| is_used(alias)) {
            return arguments;
        }
        let taken: Vec<&str> = self.aliases.iter().map(|(_, name)| name.as_str()).collect();
        let taken: Vec<&str> = taken.into_iter().filter(|name| is_used(name)).collect();
        let rename = |name: String| match self.argument_name(&name) {
            argument if taken.contains(&argument) => name,
            argument => argument.to_owned(),
        };
        let renamed: Vec<String> = arguments.keys().cloned().map(rename).collect();
        renamed
            .into_iter()
            .zip(arguments.into_iter().map(|(_, value)| value))
            .collect()
    }

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
    /// Whether code that the model runs made the call.
    pub code_mode: bool,
    /// Id of the model's tool call, also for calls of code that the call runs. `None` if a user made the call.
    pub call_id: Option<Arc<str>>,
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
            code_mode: false,
            call_id: None,
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

    /// Fails if an argument is missing or unknown, so that no user is asked to approve a call that cannot succeed. The
    /// arguments are normalized. `call` checks them completely.
    fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<()> {
        let _ = arguments;
        Ok(())
    }

    /// Runs the tool. The result is data; [`Self::render`] makes the text for the model.
    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value>;

    /// Returns the text of a result for the model and for users. With `None`, the default, they see a string unchanged
    /// and any other value as JSON. A hook may have replaced the result, so it can have another form.
    fn render(&self, result: &Value) -> Option<String> {
        let _ = result;
        None
    }
}

/// A tool call that the model requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// The run that the call belongs to.
    pub run_id: TurnId,
    /// The name of the tool. If no tool has the name that the model wrote, that name.
    pub tool: String,
    /// The arguments. Names are resolved; values are not checked or converted yet.
    pub arguments: Map<String, Value>,
    /// Whether code that the model runs made the call.
    pub code_mode: bool,
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
