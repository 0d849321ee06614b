//! A tool that is a function: what [`tool`](macro@crate::tool) builds on.

use std::{fmt, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Tool, ToolArgument, ToolContext, ToolSpec, argument};
use crate::{
    BoxFuture,
    error::{BoxError, Error, ErrorKind, Result},
};

/// What a call of a tool comes to.
pub type ToolResult = Result<Value>;

/// A tool that is a function of its checked arguments.
pub struct FunctionTool<F> {
    spec: Arc<ToolSpec>,
    function: F,
}

impl<F> FunctionTool<F>
where
    F: Fn(Arguments, ToolContext) -> BoxFuture<'static, ToolResult> + Send + Sync + 'static,
{
    /// A tool of that description.
    pub fn new(spec: ToolSpec, function: F) -> Self {
        Self {
            spec: Arc::new(spec),
            function,
        }
    }
}

impl<F> Tool for FunctionTool<F>
where
    F: Fn(Arguments, ToolContext) -> BoxFuture<'static, ToolResult> + Send + Sync + 'static,
{
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// An argument that does not fit its type stays as it is: the call reports it, with all that is wrong.
    fn normalize(&self, mut arguments: Map<String, Value>) -> Result<Map<String, Value>> {
        for (name, is_required) in self.spec.parameters() {
            let Some(schema) = self
                .spec
                .parameters
                .get("properties")
                .and_then(|all| all.get(name))
            else {
                continue;
            };
            match arguments.get_mut(name) {
                // To the call it is as if it were not there.
                Some(Value::Null) if !is_required => drop(arguments.shift_remove(name)),
                Some(value) => {
                    *value = argument::normalized(schema, value).unwrap_or_else(|| value.take());
                }
                None => {}
            }
        }
        Ok(arguments)
    }

    fn call(
        &self,
        arguments: Map<String, Value>,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<Value>> {
        let spec = Arc::clone(&self.spec);
        (self.function)(
            Arguments {
                spec,
                given: arguments,
                problems: Vec::new(),
            },
            context,
        )
    }
}

impl<F> fmt::Debug for FunctionTool<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTool")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// What the model is told of one argument.
#[derive(Debug)]
pub struct ToolParameter {
    name: &'static str,
    description: &'static str,
    schema: Value,
    is_required: bool,
}

impl ToolParameter {
    /// An argument of type `T`.
    pub fn new<T: ToolArgument>(
        name: &'static str,
        description: &'static str,
        has_default: bool,
    ) -> Self {
        Self {
            name,
            description,
            schema: T::schema(),
            is_required: !has_default && T::absent().is_none(),
        }
    }
}

/// The JSON Schema of those arguments.
pub fn schema(parameters: impl IntoIterator<Item = ToolParameter>) -> Value {
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

/// The arguments of one call while they are taken one by one. Everything that is wrong with them is gathered: the
/// model learns it all at once.
#[derive(Debug)]
pub struct Arguments {
    spec: Arc<ToolSpec>,
    given: Map<String, Value>,
    problems: Vec<String>,
}

impl Arguments {
    /// Takes an argument; `None` when it is wrong, or missing without a default.
    pub fn take<T: ToolArgument>(&mut self, name: &str, default: Option<fn() -> T>) -> Option<T> {
        let given = self.given.shift_remove(name);
        // Models that must fill in every argument write null for the ones they do not mean.
        let value =
            given.filter(|value| !value.is_null() || (default.is_none() && T::absent().is_none()));
        let outcome = match value {
            Some(value) => {
                T::from_value(value).map_err(|problem| format!("argument '{name}': {problem}"))
            }
            None => default
                .map_or_else(T::absent, |default| Some(default()))
                .ok_or_else(|| format!("argument '{name}' is missing")),
        };
        outcome.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// Whether nothing was wrong, and nothing is left over.
    pub fn is_valid(&self) -> bool {
        self.problems.is_empty() && self.given.is_empty()
    }

    /// What is wrong with them, in words the model can act on.
    pub fn error(mut self) -> Error {
        let tool = &self.spec.name;
        let known: Vec<_> = self
            .spec
            .parameters()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let known = if known.is_empty() {
            "no arguments".to_owned()
        } else {
            known.join(", ")
        };
        let unknown = self
            .given
            .keys()
            .map(|name| format!("unknown argument '{name}' of {tool}; it takes {known}"));
        self.problems.extend(unknown);
        let message = format!(
            "Tool '{}' argument validation failed. {}",
            self.spec.name,
            self.problems.join("; ")
        );
        Error::invalid_input(message).with_detail("errors", self.problems)
    }
}

/// The result of a tool as JSON; a string stays that string.
pub fn value(result: impl Serialize) -> Result<Value> {
    serde_json::to_value(result).map_err(|error| {
        Error::new(
            ErrorKind::Tool,
            format!("the result of the tool is no JSON: {error}"),
        )
    })
}

/// The error of a tool, whatever its type.
pub fn failure(error: impl Into<BoxError>) -> Error {
    Error::from_boxed(error.into())
}

/// Runs a synchronous tool where it may block.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::new(ErrorKind::Tool, format!("the tool did not finish: {error}")))
}
