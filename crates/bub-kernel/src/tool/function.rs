//! The runtime part of the attribute [`tool`](macro@crate::tool): a tool that calls a function.

use std::{fmt, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Tool, ToolArgument, ToolContext, ToolSpec, argument};
use crate::{
    async_trait,
    error::{BoxError, Error, ErrorKind, Result},
    hooks::guard::panic_text,
};

/// The result of a tool function.
pub type ToolResult = Result<Value>;

/// A tool that calls a function with validated arguments.
pub struct FunctionTool<F> {
    spec: Arc<ToolSpec>,
    function: F,
    renderer: Option<Renderer>,
}

/// A function that returns the text of a tool result, or `None` if the result has another form.
pub type Renderer = fn(&Value) -> Option<String>;

impl<F, R> FunctionTool<F>
where
    F: Fn(Arguments, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = ToolResult> + Send + 'static,
{
    /// Creates a tool.
    pub fn new(spec: ToolSpec, function: F) -> Self {
        Self {
            spec: Arc::new(spec),
            function,
            renderer: None,
        }
    }

    /// Sets the function that returns the text of a result.
    #[must_use]
    pub fn with_renderer(mut self, renderer: Renderer) -> Self {
        self.renderer = Some(renderer);
        self
    }
}

#[async_trait]
impl<F, R> Tool for FunctionTool<F>
where
    F: Fn(Arguments, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = ToolResult> + Send + 'static,
{
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Converts the arguments to their canonical form. Leaves invalid arguments unchanged: `call` reports them together
    /// with all other problems.
    fn normalize_arguments(&self, arguments: Map<String, Value>) -> Result<Map<String, Value>> {
        let mut arguments = self.spec.resolve_aliases(arguments);
        for (name, is_required) in self.spec.parameters() {
            let properties = self.spec.parameters.get("properties");
            let schema = properties.and_then(|all| all.get(name));
            match (arguments.get_mut(name), schema) {
                // `call` treats null for an optional argument as missing.
                (Some(Value::Null), _) if !is_required => drop(arguments.shift_remove(name)),
                (Some(value), Some(schema)) => {
                    let normalized = argument::normalize_value(schema, value);
                    *value = normalized.unwrap_or_else(|| value.take());
                }
                _ => {}
            }
        }
        Ok(arguments)
    }

    fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<()> {
        let mut arguments = Arguments::new(&self.spec, arguments.clone());
        for (name, is_required) in self.spec.parameters() {
            if arguments.values.shift_remove(name).is_none() && is_required {
                arguments.problems.push(missing_argument_text(name));
            }
        }
        if arguments.is_valid() {
            return Ok(());
        }
        Err(arguments.into_error())
    }

    async fn call(&self, arguments: Map<String, Value>, context: ToolContext) -> Result<Value> {
        let arguments = Arguments::new(&self.spec, arguments);
        (self.function)(arguments, context).await
    }

    fn render(&self, result: &Value) -> Option<String> {
        self.renderer?(result)
    }
}

impl<F> fmt::Debug for FunctionTool<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTool")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// The description of one tool argument.
#[derive(Debug)]
pub struct ToolParameter {
    name: &'static str,
    description: &'static str,
    schema: Value,
    is_required: bool,
}

impl ToolParameter {
    /// Describes an argument of type `T`.
    pub fn new<T: ToolArgument>(
        name: &'static str,
        description: &'static str,
        has_default: bool,
    ) -> Self {
        Self {
            name,
            description,
            schema: T::schema(),
            is_required: !has_default && T::value_if_missing().is_none(),
        }
    }

    /// Describes an argument of type `T` with a default value, which the schema shows.
    pub fn with_default<T: ToolArgument>(
        name: &'static str,
        description: &'static str,
        default: fn() -> T,
    ) -> Self {
        let mut parameter = Self::new::<T>(name, description, true);
        let default = default().to_value().filter(|value| !value.is_null());
        if let (Value::Object(schema), Some(default)) = (&mut parameter.schema, default) {
            schema.insert("default".to_owned(), default);
        }
        parameter
    }
}

/// Returns the JSON Schema of an argument list.
pub fn parameters_schema(parameters: impl IntoIterator<Item = ToolParameter>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for mut parameter in parameters {
        if let (Value::Object(schema), false) =
            (&mut parameter.schema, parameter.description.is_empty())
        {
            schema.insert("description".to_owned(), parameter.description.into());
        }
        if parameter.is_required {
            required.push(Value::from(parameter.name));
        }
        properties.insert(parameter.name.to_owned(), parameter.schema);
    }
    let mut schema = json!({"type": "object", "properties": properties});
    if let (Value::Object(schema), false) = (&mut schema, required.is_empty()) {
        schema.insert("required".to_owned(), required.into());
    }
    schema
}

/// The arguments of one call while they are converted. All problems are collected, so that the model sees them in one
/// error.
#[derive(Debug)]
pub struct Arguments {
    spec: Arc<ToolSpec>,
    values: Map<String, Value>,
    problems: Vec<String>,
}

fn missing_argument_text(name: &str) -> String {
    format!("argument '{name}' is missing")
}

impl Arguments {
    fn new(spec: &Arc<ToolSpec>, values: Map<String, Value>) -> Self {
        Self {
            spec: Arc::clone(spec),
            values: spec.resolve_aliases(values),
            problems: Vec::new(),
        }
    }

    /// Removes an argument and converts it. Returns `None` if it is invalid, or missing without a default.
    pub fn take<T: ToolArgument>(&mut self, name: &str, default: Option<fn() -> T>) -> Option<T> {
        let value = self.values.shift_remove(name);
        // Models that must write every argument use null for the ones they do not need.
        let value = value.filter(|value| {
            !value.is_null() || (default.is_none() && T::value_if_missing().is_none())
        });
        let outcome = match value {
            Some(value) => {
                T::from_value(value).map_err(|problem| format!("argument '{name}': {problem}"))
            }
            None => default
                .map_or_else(T::value_if_missing, |default| Some(default()))
                .ok_or_else(|| missing_argument_text(name)),
        };
        outcome.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// Returns whether all arguments were valid and all were taken. The tool does not know the arguments that were not
    /// taken.
    pub fn is_valid(&self) -> bool {
        self.problems.is_empty() && self.values.is_empty()
    }

    /// Returns the error that lists all problems.
    pub fn into_error(mut self) -> Error {
        let tool = &self.spec.name;
        let parameters = self.spec.parameters().into_iter();
        let names: Vec<_> = parameters.map(|(name, _)| name).collect();
        let accepted = if names.is_empty() {
            "no arguments".to_owned()
        } else {
            names.join(", ")
        };
        for name in self.values.keys() {
            let problem = format!("unknown argument '{name}' of {tool}; it takes {accepted}");
            self.problems.push(problem);
        }
        let problems = self.problems.join("; ");
        let message = format!("Tool '{tool}' argument validation failed. {problems}");
        Error::invalid_input(message).with_detail("errors", self.problems)
    }
}

/// Converts the result of a tool to JSON.
pub fn result_to_value(result: impl Serialize) -> Result<Value> {
    serde_json::to_value(result).map_err(|error| {
        Error::new(
            ErrorKind::Tool,
            format!("cannot convert the tool result to JSON: {error}; the tool must return a value that JSON can represent"),
        )
    })
}

/// Converts the error of a tool into an [`Error`].
pub fn tool_error(error: impl Into<BoxError>) -> Error {
    Error::from_boxed(error.into())
}

/// Runs a synchronous tool on a thread where it may block.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        let message = match error.try_into_panic() {
            Ok(panic) => format!("tool panicked: {}; see the log", panic_text(panic.as_ref())),
            Err(_) => "tool did not finish: bub is shutting down; call it again after the restart"
                .to_owned(),
        };
        Error::new(ErrorKind::Tool, message)
    })
}

/// The tools of a type without a `#[tools]` block. A type with such a block has its own function `__bub_tools`, and the
/// compiler prefers it to this one.
pub trait NoTools {
    /// Returns no tools.
    fn __bub_tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>> {
        Vec::new()
    }
}

impl<T> NoTools for T {}
