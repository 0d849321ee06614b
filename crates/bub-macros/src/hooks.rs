//! Converts the methods of an `impl` block into hook registrations.
//!
//! The attribute has no list of hooks. Its output calls macros that the hook table in `bub-kernel` generates. They check
//! the names of methods and arguments, and report a wrong name at its position in the author's code.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, FnArg, ImplItem, ImplItemFn, ItemImpl, Pat, Path, Result, ext::IdentExt,
    spanned::Spanned,
};

use crate::block::expand_block;

pub(crate) fn expand(options: TokenStream, block: &TokenStream) -> TokenStream {
    expand_block("hooks", options, block, expand_hooks)
}

fn expand_hooks(kernel: &Path, mut block: ItemImpl) -> TokenStream {
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

        impl #generics #kernel::Plugin for #plugin #bounds {
            fn register(self: ::std::sync::Arc<Self>, hooks: &mut #kernel::hooks::HookSet) {
                #(#registrations)*
                let _ = hooks;
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
    let arguments = argument_expressions(kernel, method)?;
    let conditions = method
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"));
    let point = format_ident!(
        "{}",
        to_camel_case(&name.unraw().to_string()),
        span = name.span()
    );
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
    let (add, hook_impl) = if method.sig.asyncness.is_some() {
        let body = quote_spanned!(span=> #convert(#call.await));
        let hook_impl = quote! {
            impl #impl_generics #kernel::hooks::AsyncHook<#kernel::hooks::point::#point>
                for __BubHookAdapter #type_generics #bounds
            {
                fn call<'call>(
                    &'call self,
                    call: #kernel::hooks::HookCall<'call, #kernel::hooks::point::#point>,
                ) -> #kernel::BoxFuture<'call, #kernel::hooks::HookReturn<
                    <#kernel::hooks::point::#point as #kernel::hooks::HookPoint>::Output>>
                {
                    let _ = call;
                    ::std::boxed::Box::pin(async move { #body })
                }
            }
        };
        (quote!(add_async), hook_impl)
    } else {
        let body = quote_spanned!(span=> #convert(#call));
        let hook_impl = quote! {
            impl #impl_generics #kernel::hooks::SyncHook<#kernel::hooks::point::#point>
                for __BubHookAdapter #type_generics #bounds
            {
                fn call(
                    &self,
                    call: #kernel::hooks::HookCall<'_, #kernel::hooks::point::#point>,
                ) -> #kernel::hooks::HookReturn<
                    <#kernel::hooks::point::#point as #kernel::hooks::HookPoint>::Output>
                {
                    let _ = call;
                    #body
                }
            }
        };
        (quote!(add_sync), hook_impl)
    };
    let observe = observe_only.map(|_| quote!(hooks.set_last_observe_only();));
    let registration = quote! {
        struct __BubHookAdapter #impl_generics (::std::sync::Arc<#plugin>) #bounds;
        #hook_impl
        hooks.#add::<#kernel::hooks::point::#point>(__BubHookAdapter(::std::sync::Arc::clone(&self)));
        #observe
    };
    let kernel = with_span(kernel, span);
    Ok(quote_spanned! {span=>
        #(#conditions)*
        #kernel::__hook!(#name {{ #registration }});
    })
}

/// Returns the tokens of a path with the given span, so that compiler errors point to that place in the author's code.
fn with_span(path: &Path, span: Span) -> TokenStream {
    let set_span = |mut token: TokenTree| {
        token.set_span(span);
        token
    };
    path.to_token_stream().into_iter().map(set_span).collect()
}

/// Returns one expression per argument of the method. Each takes the hook argument of the same name.
fn argument_expressions(kernel: &Path, method: &ImplItemFn) -> Result<Vec<TokenStream>> {
    let hook = &method.sig.ident;
    let mut inputs = method.sig.inputs.iter();
    match inputs.next() {
        Some(FnArg::Receiver(receiver))
            if receiver.reference.is_some() && receiver.mutability.is_none() => {}
        _ => {
            let message = format!(
                "`{hook}` must take `&self` to implement a hook; move helper functions to an `impl` block without `#[hooks]`"
            );
            return Err(Error::new(method.sig.ident.span(), message));
        }
    }
    inputs
        .map(|input| {
            let FnArg::Typed(typed) = input else {
                return Err(Error::new(input.span(), "unexpected receiver"));
            };
            let Pat::Ident(pattern) = &*typed.pat else {
                return Err(Error::new(
                    typed.pat.span(),
                    "patterns are not supported: use the name of a hook argument",
                ));
            };
            let argument = &pattern.ident;
            // Report a type mismatch at the argument.
            let call = Ident::new("call", Span::call_site());
            let kernel = with_span(kernel, argument.span());
            Ok(quote_spanned!(argument.span()=> #kernel::__hook_arg!(#hook #argument #call)))
        })
        .collect()
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
