//! Turns a function into one that returns a tool.
//!
//! The function itself is kept, inside the one of its name; around it stands what takes the arguments of a call
//! out of their JSON, each by the rules of its type.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, ItemFn, Lit, LitStr, Meta, Pat, PatType, Path, Result,
    ReturnType, Token, Type, ext::IdentExt, parse::ParseStream, parse::Parser, parse2,
    spanned::Spanned,
};

use crate::hooks::{crate_path, take_attribute};

pub(crate) fn expand(options: TokenStream, function: &TokenStream) -> TokenStream {
    try_expand(options, function.clone()).unwrap_or_else(|error| error.to_compile_error())
}

fn try_expand(options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let options = Options::parse(options)?;
    let mut function: ItemFn = parse2(function)?;
    let ident = function.sig.ident.clone();
    if !function.sig.generics.params.is_empty() {
        return Err(Error::new(
            function.sig.generics.span(),
            "a tool is one function: it cannot be generic",
        ));
    }
    let description = documentation(&function.attrs);
    if description.is_empty() {
        let message =
            "a tool needs a doc comment: it tells the model what the tool does, and when to use it";
        return Err(Error::new(ident.span(), message));
    }
    let (takes_context, parameters) = parameters(&mut function)?;
    let Options {
        kernel,
        name,
        read_only,
        command_only,
    } = options;
    let name = name.unwrap_or_else(|| ident.unraw().to_string());

    let described = parameters.iter().map(|Parameter { name, ty, description, default }| {
        let has_default = default.is_some();
        quote_spanned!(ty.span()=> #kernel::tool::Parameter::new::<#ty>(#name, #description, #has_default))
    });
    let taken = parameters.iter().map(|Parameter { name, ty, default, .. }| {
        let default = default.as_ref().map_or_else(
            || quote!(::core::option::Option::None),
            |default| quote_spanned!(default.span()=> ::core::option::Option::Some(|| -> #ty { #default })),
        );
        quote!(arguments.take::<#ty>(#name, #default))
    });
    let values: Vec<_> = (0..parameters.len())
        .map(|index| format_ident!("argument_{index}"))
        .collect();
    let context = takes_context.map(|is_reference| {
        if is_reference {
            quote!(&context,)
        } else {
            quote!(context,)
        }
    });
    let call = quote_spanned!(ident.span()=> #ident(#context #(#values),*));
    let outcome = if function.sig.asyncness.is_some() {
        quote!(#call.await)
    } else {
        quote!(#kernel::tool::blocking(move || #call).await?)
    };
    let value = quote_spanned!(function.sig.output.span()=> #kernel::tool::value);
    let result = if returns_result(&function.sig.output) {
        quote!(#outcome.map_err(#kernel::tool::failure).and_then(#value))
    } else {
        quote!(#value(#outcome))
    };
    let attributes = &function.attrs;
    let visibility = std::mem::replace(&mut function.vis, syn::Visibility::Inherited);
    let inner = ItemFn {
        attrs: lints(attributes),
        ..function.clone()
    };
    Ok(quote! {
        #(#attributes)*
        #visibility fn #ident() -> impl #kernel::tool::Tool {
            #[allow(
                clippy::needless_pass_by_value, clippy::similar_names, clippy::too_many_arguments, clippy::unnecessary_wraps,
                clippy::unused_async, reason = "the tool decides the shape of the function"
            )]
            #inner

            let spec = #kernel::tool::ToolSpec {
                name: ::std::string::String::from(#name),
                description: ::std::string::String::from(#description),
                parameters: #kernel::tool::schema([#(#described),*]),
                agent_use: !#command_only,
                read_only: #read_only,
            };
            #kernel::tool::FunctionTool::new(
                spec,
                |mut arguments: #kernel::tool::Arguments, context: #kernel::tool::ToolContext|
                    -> #kernel::BoxFuture<'static, #kernel::tool::ToolResult>
                {
                    ::std::boxed::Box::pin(async move {
                        let _ = &context;
                        let (#(::core::option::Option::Some(#values),)* true) =
                            (#(#taken,)* arguments.are_fine())
                        else {
                            return ::core::result::Result::Err(arguments.error());
                        };
                        #result
                    })
                },
            )
        }
    })
}

struct Options {
    kernel: Path,
    name: Option<String>,
    read_only: bool,
    command_only: bool,
}

impl Options {
    fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self {
            kernel: parse2(quote!(::bub))?,
            name: None,
            read_only: false,
            command_only: false,
        };
        let parser = |input: ParseStream<'_>| {
            while !input.is_empty() {
                options.option(input)?;
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        };
        parser.parse2(tokens)?;
        Ok(options)
    }

    fn option(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(Token![crate]) {
            self.kernel = crate_path(input)?;
            return Ok(());
        }
        let option = input.call(Ident::parse_any)?;
        match option.to_string().as_str() {
            "read_only" => self.read_only = true,
            "command_only" => self.command_only = true,
            "name" => {
                input.parse::<Token![=]>()?;
                self.name = Some(checked_name(&input.parse::<LitStr>()?)?);
            }
            other => {
                let message = format!(
                    "`#[tool]` has no option `{other}`; there are: `name = \"…\"`, `read_only`, `command_only`, `crate = path`"
                );
                return Err(Error::new(option.span(), message));
            }
        }
        Ok(())
    }
}

/// What providers accept, with dots on top: those become underscores.
fn checked_name(name: &LitStr) -> Result<String> {
    let text = name.value();
    let is_fine = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if text.is_empty() || text.len() > 64 || !text.chars().all(is_fine) {
        let message = "the name of a tool has 1 to 64 letters, digits, `.`, `_` or `-`";
        return Err(Error::new(name.span(), message));
    }
    Ok(text)
}

struct Parameter {
    name: String,
    ty: Type,
    description: String,
    default: Option<TokenStream>,
}

/// Whether the function takes the context (and as a reference), and its other arguments, whose attributes are removed.
fn parameters(function: &mut ItemFn) -> Result<(Option<bool>, Vec<Parameter>)> {
    let mut context = None;
    let mut parameters = Vec::new();
    for (index, input) in function.sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(typed) = input else {
            let message = "a tool is a function without `self`; what it needs, it finds in the slots of `context.state`";
            return Err(Error::new(input.span(), message));
        };
        match (is_context(&typed.ty), index) {
            (Some(is_reference), 0) => context = Some(is_reference),
            (Some(_), _) => {
                return Err(Error::new(
                    typed.span(),
                    "the context is the first argument of a tool",
                ));
            }
            (None, _) => parameters.push(parameter(typed)?),
        }
    }
    Ok((context, parameters))
}

fn parameter(typed: &mut PatType) -> Result<Parameter> {
    let Pat::Ident(pattern) = &*typed.pat else {
        return Err(Error::new(
            typed.pat.span(),
            "an argument of a tool has a plain name: the model calls it by that",
        ));
    };
    if let Type::Reference(reference) = &*typed.ty {
        return Err(Error::new(
            reference.span(),
            "a tool owns its arguments: `String` in place of `&str`",
        ));
    }
    let name = pattern.ident.unraw().to_string();
    let default = take_attribute(&mut typed.attrs, "default")
        .map(|attribute| default(&attribute))
        .transpose()?;
    let description = documentation(&typed.attrs);
    typed
        .attrs
        .retain(|attribute| !attribute.path().is_ident("doc"));
    Ok(Parameter {
        name,
        ty: (*typed.ty).clone(),
        description,
        default,
    })
}

/// `#[default(value)]`; text in quotes becomes whatever owns text.
fn default(attribute: &Attribute) -> Result<TokenStream> {
    let Meta::List(list) = &attribute.meta else {
        return Err(Error::new(
            attribute.span(),
            "a default has a value: `#[default(20)]`",
        ));
    };
    let value: Expr = list.parse_args()?;
    Ok(match &value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => {
            quote_spanned!(text.span()=> ::core::convert::Into::into(#text))
        }
        other => quote!(#other),
    })
}

/// Whether the type is the context of a call, and if so, whether a reference to it.
fn is_context(ty: &Type) -> Option<bool> {
    match ty {
        Type::Reference(reference) => is_context(&reference.elem).map(|_| true),
        Type::Path(path) => path
            .path
            .segments
            .last()
            .filter(|last| last.ident == "ToolContext")
            .map(|_| false),
        _ => None,
    }
}

fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else {
        return false;
    };
    let Type::Path(path) = &**ty else {
        return false;
    };
    path.path
        .segments
        .last()
        .is_some_and(|last| last.ident == "Result")
}

/// The attributes that speak of the code inside.
fn lints(attributes: &[Attribute]) -> Vec<Attribute> {
    let is_lint = |attribute: &&Attribute| {
        ["allow", "expect"]
            .iter()
            .any(|name| attribute.path().is_ident(name))
    };
    attributes.iter().filter(is_lint).cloned().collect()
}

/// The doc comment, with the lines of a paragraph joined.
fn documentation(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    let mut is_new_paragraph = false;
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("doc"))
    {
        let Meta::NameValue(meta) = &attribute.meta else {
            continue;
        };
        let Expr::Lit(ExprLit {
            lit: Lit::Str(line),
            ..
        }) = &meta.value
        else {
            continue;
        };
        for line in line.value().lines().map(str::trim) {
            if line.is_empty() {
                is_new_paragraph = true;
                continue;
            }
            if !text.is_empty() {
                text.push(if is_new_paragraph || line.starts_with("- ") {
                    '\n'
                } else {
                    ' '
                });
            }
            is_new_paragraph = false;
            text.push_str(line);
        }
    }
    text
}
