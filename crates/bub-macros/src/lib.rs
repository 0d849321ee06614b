//! The attributes `#[hooks]`, `#[tool]` and `#[tools]`, and the derives `Settings` and `SettingChoice`. Use them through
//! the `bub` crate.

mod block;
mod hooks;
mod settings;
mod tool;
mod tools;

use proc_macro::TokenStream;

/// Implements `Plugin` for a type. Each method of the `impl` block implements the hook of the same name.
///
/// * A method is synchronous or `async`, except for the synchronous hooks. It takes `&self` and only the arguments it needs, in any order.
/// * It returns the hook's result, or an `Option`, a `Result`, or a `Result<Option<_>>` of it. `None` means "no
///   result".
/// * A method of a first-result hook can take `next: Next<'_>` to call the next plugins.
/// * `#[observe_only]` on `before_tool_call`: if the method fails, the tool call continues.
/// * The plugin has the tools of the type's [`tools`](macro@tools) block, if there is one.
/// * `#[hooks(crate = some_path)]` sets the path of the kernel, if it is not `::bub`.
///
/// ```ignore
/// #[hooks]
/// impl Echo {
///     async fn run_model(&self, prompt: &Prompt) -> Option<String> {
///         Some(format!("echo: {}", prompt.text()))
///     }
/// }
/// ```
#[proc_macro_attribute]
pub fn hooks(options: TokenStream, block: TokenStream) -> TokenStream {
    hooks::expand(options.into(), &block.into()).into()
}

/// Makes a tool from a function. Its name, description and JSON Schema come from the code.
///
/// * The doc comment of the function is the tool's description, and the doc comment of an argument describes the
///   argument. The model reads both.
/// * The first argument can be `context: &ToolContext`. All others are arguments of the tool, with types that implement
///   `ToolArgument`. An `Option` and an argument with `#[default(value)]` are optional.
///   `#[alias("old_name")]` accepts another name of an argument.
/// * The function returns any serializable value or a `Result` of it. The model sees a string unchanged and any other
///   value as JSON.
/// * A function that is not `async` runs on a thread where it may block.
///
/// Options:
///
/// * `name = "fs.read"`: the name of the tool. The default is the function's name.
/// * `read_only`: the tool changes nothing, so calls may run concurrently.
/// * `command_only`: users can call the tool with a comma command, but the model cannot.
/// * `direct`: the model can call the tool also in code mode, and code cannot. `code_only`: only code can.
/// * `deferred`: the model sees only the name of the tool until it asks for the description.
/// * `render = path`: a `fn(&Value) -> Option<String>` that returns the text of a result for the model and for users.
/// * `output = path`: a `fn() -> Value` that returns the JSON Schema of the result, for code that calls the tool.
/// * `crate = some_path`: the path of the kernel, if it is not `::bub`.
///
/// The attribute replaces the function with one that takes no arguments and returns the tool: `app.tool(weather())`.
///
/// ```ignore
/// /// Return the weather report of a city.
/// #[tool(read_only)]
/// async fn weather(
///     /// Name of the city.
///     city: String,
/// ) -> Result<String> {
///     fetch_report(&city).await
/// }
/// ```
#[proc_macro_attribute]
pub fn tool(options: TokenStream, function: TokenStream) -> TokenStream {
    expand_or_report(tool::expand(options.into(), function.into()))
}

/// Makes tools from the methods of an `impl` block. They share one value, such as a client.
///
/// * Each method is a tool and takes `&self`. Otherwise, the rules of [`macro@tool`] apply.
/// * `#[tool(…)]` on a method sets its options; without it, the tool has the method's name.
/// * The block gets a method `tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>>`.
/// * If the type also has a [`hooks`](macro@hooks) block, the plugin has the tools. If it has none, `#[tools(plugin)]`
///   makes the type a plugin.
/// * `#[tools(crate = some_path)]` sets the path of the kernel, if it is not `::bub`.
#[proc_macro_attribute]
pub fn tools(options: TokenStream, block: TokenStream) -> TokenStream {
    tools::expand(options.into(), &block.into()).into()
}

/// Declares the settings of a section and implements `FromSettings`: each field of the struct is a setting.
///
/// `#[settings(section = "github")]` names the section. The field `base` is then `github.base` in the config file and
/// `BUB_GITHUB_BASE` in the environment. The first paragraph of a field's doc comment is its help text in `bub config`.
/// The type determines which values are valid: an `Option` can be unset, and a `Secret` is never shown.
///
/// Options of a field, in `#[setting(…)]`:
///
/// * `default = …`: the value if nothing sets the setting. A constant; text for a `String`, a path or a list, and
///   `Some(…)` for an `Option`. Without it, an `Option` is `None`, and a list or map is empty; other types need it.
/// * `name = "timeout_seconds"`: the name of the setting, if it is not the name of the field.
/// * The methods of `SettingKey`: `env_only`, `write_as_list`, `at_least = 1`, `at_most = 9`,
///   `format = &text_format::BASE_URL`, `variable = "NAME"`, `deprecated_names = &["github.url"]`.
///
/// For each field, there is a constant with its declaration, a `SettingKey`: `GithubSettings::BASE`.
///
/// `#[settings(crate = some_path)]` sets the path of `bub_settings`, if it is not `::bub::settings`.
///
/// ```ignore
/// #[derive(Settings)]
/// #[settings(section = "github")]
/// struct GithubSettings {
///     /// Token for the API.
///     token: Option<Secret>,
///     /// Base URL of the server.
///     #[setting(default = "https://api.github.com", format = &text_format::BASE_URL)]
///     base: String,
/// }
/// ```
#[proc_macro_derive(Settings, attributes(settings, setting))]
pub fn derive_settings(item: TokenStream) -> TokenStream {
    expand_or_report(settings::expand_struct(item.into()))
}

/// Makes an enum the type of a setting. Its variants are the words that users can write: `ReadOnly` is `read-only`.
///
/// The variants have no fields, and the enum is `Copy`. `#[setting(name = "…")]` on a variant sets another word.
/// `#[settings(crate = some_path)]` sets the path of `bub_settings`, if it is not `::bub::settings`.
#[proc_macro_derive(SettingChoice, attributes(settings, setting))]
pub fn derive_setting_choice(item: TokenStream) -> TokenStream {
    expand_or_report(settings::expand_choice(item.into()))
}

fn expand_or_report(expanded: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    let tokens = expanded.unwrap_or_else(syn::Error::into_compile_error);
    tokens.into()
}
