//! Converts the methods of an `impl` block into tools that share one value.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Meta, Path, Result, spanned::Spanned};

use crate::{
    block::{BlockOptions, check_receiver, expand_block},
    tool::{Callee, ToolDefinition, ToolOptions, is_named},
};

pub(crate) fn expand(options: TokenStream, block: &TokenStream) -> TokenStream {
    expand_block(("tools", Some("plugin")), options, block, expand_tools)
}

fn expand_tools(options: &BlockOptions, mut block: ItemImpl) -> TokenStream {
    let kernel = &options.kernel;
    let mut tools = ToolList::default();
    let mut errors = Vec::new();
    for item in &mut block.items {
        let outcome = match item {
            ImplItem::Fn(method) => tools.add_tool(kernel, method),
            other => Err(Error::new(
                other.span(),
                "only methods can be tools; move this item to an `impl` block without `#[tools]`",
            )),
        };
        errors.extend(outcome.err().map(|error| error.to_compile_error()));
    }
    let tools = tools.expressions;
    let (generics, _, bounds) = block.generics.split_for_impl();
    let owner = &block.self_ty;
    let plugin = options.has_flag.then(|| {
        quote! {
            impl #generics #kernel::Plugin for #owner #bounds {
                fn register(self: ::std::sync::Arc<Self>, _: &mut #kernel::hooks::HookSet) {}

                fn tools(
                    self: &::std::sync::Arc<Self>,
                ) -> ::std::vec::Vec<::std::sync::Arc<dyn #kernel::tool::Tool>> {
                    <#owner>::tools(self)
                }
            }
        }
    });
    quote! {
        #[allow(
            clippy::needless_pass_by_value, clippy::similar_names, clippy::too_many_arguments, clippy::unnecessary_wraps,
            clippy::unused_async, clippy::unused_self, reason = "the tool determines the signature of the method"
        )]
        #block

        impl #generics #owner #bounds {
            /// Returns the tools of this value, in the order of their methods. They share the value.
            pub fn tools(
                self: &::std::sync::Arc<Self>,
            ) -> ::std::vec::Vec<::std::sync::Arc<dyn #kernel::tool::Tool>> {
                let tools: [::std::sync::Arc<dyn #kernel::tool::Tool>; _] = [#(#tools),*];
                ::std::vec::Vec::from(tools)
            }

            #[doc(hidden)]
            pub fn __bub_tools(
                self: &::std::sync::Arc<Self>,
            ) -> ::std::vec::Vec<::std::sync::Arc<dyn #kernel::tool::Tool>> {
                <#owner>::tools(self)
            }
        }

        #plugin

        #(#errors)*
    }
}

/// The tools of one `#[tools]` block.
#[derive(Default)]
struct ToolList {
    /// The method of each tool and its name for the model, which has no dots. Methods with a `cfg` attribute are not
    /// included.
    names: Vec<(Ident, String)>,
    expressions: Vec<TokenStream>,
}

impl ToolList {
    fn add_tool(&mut self, kernel: &Path, method: &mut ImplItemFn) -> Result<()> {
        let options = take_options(&mut method.attrs);
        let definition = ToolDefinition::parse(options, &method.attrs, &mut method.sig);
        check_receiver(&method.sig, "tools", "be a tool")?;
        let definition = definition?;
        let conditions: Vec<_> = method
            .attrs
            .iter()
            .filter(|attribute| attribute.path().is_ident("cfg"))
            .collect();
        // Methods with `cfg` attributes may be alternatives with the same name.
        if conditions.is_empty() {
            self.check_name(&definition)?;
        }
        let tool = definition.expand(kernel, &Callee::Method);
        self.expressions.push(quote! {
            #(#conditions)*
            {
                let this = ::std::sync::Arc::clone(self);
                ::std::sync::Arc::new(#tool)
            }
        });
        Ok(())
    }

    /// Checks that the name of a tool is unique. A dot and an underscore are equal, because the model sees underscores.
    fn check_name(&mut self, definition: &ToolDefinition) -> Result<()> {
        let model_name = definition.name.replace('.', "_");
        if let Some((first, _)) = self.names.iter().find(|(_, name)| *name == model_name) {
            let second = &definition.ident;
            let message = format!(
                "duplicate tool name `{model_name}`: used by `{first}` and `{second}`; rename one, for example with `#[tool(name = \"…\")]`"
            );
            return Err(Error::new(second.span(), message));
        }
        self.names.push((definition.ident.clone(), model_name));
        Ok(())
    }
}

/// Removes the attribute `#[tool]` and parses its options.
fn take_options(attributes: &mut Vec<Attribute>) -> Result<ToolOptions> {
    let is_tool = |attribute: &Attribute| is_named(attribute.path(), "tool");
    let Some(index) = attributes.iter().position(is_tool) else {
        return Ok(ToolOptions::default());
    };
    let attribute = attributes.remove(index);
    let span = attribute.span();
    let options = match attribute.meta {
        Meta::List(list) => ToolOptions::parse(list.tokens)?,
        _ => ToolOptions::default(),
    };
    if options.kernel.is_some() {
        let message = "`crate` is an option of the block: write `#[tools(crate = path)]`";
        return Err(Error::new(span, message));
    }
    Ok(options)
}
