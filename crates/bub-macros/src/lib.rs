//! Attributes of bub. Use them through the `bub` crate.

mod hooks;
mod tool;
mod tools;

use proc_macro::TokenStream;

/// Makes a plugin of an ordinary `impl` block: every method in it implements the hook of its name.
///
/// * A method is synchronous or `async`, takes `&self`, and names only the arguments it wants.
/// * It returns the result of the hook, or that in an `Option`, a `Result`, or a `Result` of an
///   `Option`; `None` means "no opinion".
/// * A first-result hook may ask for `next: Next<'_, point::TheHook>`, the chain below itself.
/// * `#[observe_only]` on `before_tool_call`: when it fails, the tool call goes on.
/// * `#[hooks(crate = some_path)]` when the kernel is not reached as `::bub`.
#[proc_macro_attribute]
pub fn hooks(options: TokenStream, block: TokenStream) -> TokenStream {
    hooks::expand(options.into(), &block.into()).into()
}

/// Makes a tool of a function: its name, description and JSON Schema come from the code.
///
/// * The doc comment is what the model is told; so is the doc comment of each argument.
/// * A first argument `context: &ToolContext` is the call's surroundings; every other one is an argument of the
///   tool, of a type that implements `ToolArgument`. An `Option` may be left out, and so may one with
///   `#[default(value)]`.
/// * It returns anything that serializes, or a `Result` of it; a string reaches the model as it is.
/// * An `async` function waits; a plain one runs on a thread where it may block.
/// * Options: `name = "fs.read"` (else the function's name), `read_only` (it changes nothing, so calls may run side
///   by side), `command_only` (for people, not for the model), `crate = some_path` when the kernel is not
///   reached as `::bub`.
///
/// The function then takes nothing and returns the tool: `app.tool(weather())`.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, function: TokenStream) -> TokenStream {
    tool::expand(options.into(), &function.into()).into()
}

/// Makes tools of the methods of an `impl` block. They share one value, such as a client.
///
/// * Every method is a tool and takes `&self` first. The rules of [`macro@tool`] apply to the rest.
/// * `#[tool(…)]` on a method sets its options; without it, the tool has the method's name.
/// * The block gets a method `tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>>`. Pass its result to
///   `PluginContext::add_tools`.
/// * `#[tools(crate = some_path)]` when the kernel is not reached as `::bub`.
#[proc_macro_attribute]
pub fn tools(options: TokenStream, block: TokenStream) -> TokenStream {
    tools::expand(options.into(), &block.into()).into()
}
