//! Converts the methods of an `impl` block into hook registrations.
//!
//! The attribute `#[hooks]` has no list of hooks. Its output calls macros that the hook table in `bub-kernel`
//! generates. These macros check the names of methods and arguments, and report a wrong name at its position in the
//! author's code.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Attribute, Error, FnArg, ImplItem, ImplItemFn, ItemImpl, Pat, Path, PathArguments, Result,
    Type, ext::IdentExt, parse_quote, spanned::Spanned,
};

use crate::block::{BlockOptions, check_receiver, expand_block};

pub(crate) fn expand(options: TokenStream, block: &TokenStream) -> TokenStream {
    expand_block(("hooks", None), options, block, expand_hooks)
}

fn expand_hooks(options: &BlockOptions, mut block: ItemImpl) -> TokenStream {
    let kernel = &options.kernel;
    let mut registrations = Vec::new();
    let mut errors = Vec::new();
    for item in &mut block.items {
        let outcome = match item {
            ImplItem::Fn(method) => expand_hook(kernel, &block.self_ty, &block.generics, method),
            other => Err(Error::new(
                other.span(),
                "only methods can implement hooks; move this item to an `impl` block without `#[hooks]`",
            )),
        };
        match outcome {
            Ok(tokens) => registrations.push(tokens),
            Err(error) => errors.push(error.to_compile_error()),
        }
    }
    let (generics, _, bounds) = block.generics.split_for_impl();
    let plugin = &block.self_ty;
    quote! {
        #[allow(
            clippy::too_many_arguments, clippy::unnecessary_wraps, clippy::unused_async, clippy::unused_self,
            reason = "the hook determines the signature of the method"
        )]
        #block

        // The compiler names this constant if the type has two blocks.
        impl #generics #plugin #bounds {
            #[allow(dead_code, non_upper_case_globals, reason = "part of an error message")]
            const a_type_has_one_hooks_block__move_all_hooks_into_it: () = ();
        }

        impl #generics #kernel::Plugin for #plugin #bounds {
            fn register(self: ::std::sync::Arc<Self>, hooks: &mut #kernel::hooks::HookSet) {
                #(#registrations)*
                let _ = hooks;
            }

            fn tools(
                self: &::std::sync::Arc<Self>,
            ) -> ::std::vec::Vec<::std::sync::Arc<dyn #kernel::tool::Tool>> {
                // A `#[tools]` block of the type has a function of this name, which hides that of the trait.
                #[allow(unused_imports, reason = "the type may have a `#[tools]` block")]
                use #kernel::tool::NoTools as _;
                <#plugin>::__bub_tools(self)
            }
        }

        #(#errors)*
    }
}

/// Returns the code that registers one method as the implementation of its hook.
fn expand_hook(
    kernel: &Path,
    plugin: &syn::Type,
    generics: &syn::Generics,
    method: &mut ImplItemFn,
) -> Result<TokenStream> {
    let observe_only = take_attribute(&mut method.attrs, "observe_only");
    let name = method.sig.ident.clone();
    if let Some(attribute) = observe_only.as_ref().filter(|_| name != "before_tool_call") {
        return Err(Error::new(
            attribute.span(),
            "`#[observe_only]` is only for `before_tool_call`: a failure of other hooks does not deny anything",
        ));
    }
    let point = to_camel_case(&name.unraw().to_string());
    let point = Ident::new(&point, name.span());
    name_hook_of_next(kernel, &point, method);
    let arguments = argument_expressions(kernel, method)?;
    let attributes = method.attrs.iter();
    let conditions = attributes.filter(|attribute| attribute.path().is_ident("cfg"));
    let span = name.span();
    // Use the span of the generated code: if a macro generates the plugin, the author's identifiers have another
    // hygiene scope.
    let this = Ident::new("self", Span::call_site());
    let call = quote_spanned!(span=> <#plugin>::#name(&#this.0 #(, #arguments)*));
    let convert = {
        let kernel = with_span(kernel, span);
        quote_spanned! {span=>
            #kernel::hooks::IntoHookReturn::<
                <#kernel::hooks::point::#point as #kernel::hooks::HookPoint>::Output
            >::into_hook_return
        }
    };
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    let hooks = quote!(#kernel::hooks);
    let output = quote!(#hooks::HookReturn<<#hooks::point::#point as #hooks::HookPoint>::Output>);
    let (add, hook_trait, method_impl) = if method.sig.asyncness.is_some() {
        let body = quote_spanned!(span=> #convert(#call.await));
        let method_impl = quote! {
            fn call<'call>(
                &'call self,
                call: #hooks::HookCall<'call, #hooks::point::#point>,
            ) -> #kernel::BoxFuture<'call, #output> {
                let _ = call;
                ::std::boxed::Box::pin(async move { #body })
            }
        };
        (quote!(add_async), quote!(AsyncHook), method_impl)
    } else {
        let body = quote_spanned!(span=> #convert(#call));
        let method_impl = quote! {
            fn call(&self, call: #hooks::HookCall<'_, #hooks::point::#point>) -> #output {
                let _ = call;
                #body
            }
        };
        (quote!(add_sync), quote!(SyncHook), method_impl)
    };
    let observe = observe_only.map(|_| quote!(hooks.set_last_observe_only();));
    let registration = quote! {
        struct __BubHookAdapter #impl_generics (::std::sync::Arc<#plugin>) #bounds;
        impl #impl_generics #hooks::#hook_trait<#hooks::point::#point>
            for __BubHookAdapter #type_generics #bounds
        {
            #method_impl
        }
        hooks.#add::<#hooks::point::#point>(__BubHookAdapter(::std::sync::Arc::clone(&self)));
        #observe
    };
    let (kernel, asyncness) = (with_span(kernel, span), &method.sig.asyncness);
    Ok(quote_spanned! {span=>
        #(#conditions)*
        #kernel::__hook!(#name #asyncness {{ #registration }});
    })
}

/// Returns the tokens of a path with the given span, so that compiler errors point to that span of the author's code.
fn with_span(path: &Path, span: Span) -> TokenStream {
    let set_span = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    path.to_token_stream().into_iter().map(set_span).collect()
}

/// Returns one expression per argument of the method: the hook argument of the same name.
fn argument_expressions(kernel: &Path, method: &ImplItemFn) -> Result<Vec<TokenStream>> {
    let hook = &method.sig.ident;
    check_receiver(&method.sig, "hooks", "implement a hook")?;
    let inputs = method.sig.inputs.iter().skip(1);
    inputs
        .map(|input| {
            let FnArg::Typed(typed) = input else {
                return Err(Error::new(input.span(), "unexpected receiver"));
            };
            let Pat::Ident(pattern) = &*typed.pat else {
                let message = "patterns are not supported: use the name of a hook argument";
                return Err(Error::new(typed.pat.span(), message));
            };
            let argument = &pattern.ident;
            // Report a type mismatch at the argument.
            let call = Ident::new("call", Span::call_site());
            let kernel = with_span(kernel, argument.span());
            Ok(quote_spanned!(argument.span()=> #kernel::__hook_arg!(#hook #argument #call)))
        })
        .collect()
}

/// Completes the type of an argument `next`: in the method of a hook, `Next<'_>` means `Next<'_, point::TheHook>`.
fn name_hook_of_next(kernel: &Path, point: &Ident, method: &mut ImplItemFn) {
    for input in &mut method.sig.inputs {
        let FnArg::Typed(typed) = input else { continue };
        let Type::Path(path) = &mut *typed.ty else {
            continue;
        };
        let Some(next) = path.path.segments.last_mut() else {
            continue;
        };
        if next.ident != "Next" {
            continue;
        }
        match &mut next.arguments {
            PathArguments::None => {
                next.arguments = PathArguments::AngleBracketed(
                    parse_quote!(<'_, #kernel::hooks::point::#point>),
                );
            }
            PathArguments::AngleBracketed(given) if given.args.len() == 1 => {
                given.args.push(parse_quote!(#kernel::hooks::point::#point));
            }
            _ => {}
        }
    }
}

/// Removes the attribute with this name and returns it.
pub(crate) fn take_attribute(attributes: &mut Vec<Attribute>, name: &str) -> Option<Attribute> {
    let index = attributes
        .iter()
        .position(|attribute| attribute.path().is_ident(name))?;
    Some(attributes.remove(index))
}

fn to_camel_case(snake: &str) -> String {
    let words = snake.split('_').map(|word| {
        let mut chars = word.chars();
        chars.next().map_or_else(String::new, |first| {
            first.to_uppercase().chain(chars).collect()
        })
    });
    words.collect()
}
