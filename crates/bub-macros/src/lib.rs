//! Attributes of bub. Use them through the `bub` crate.

mod hooks;

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
