//! Converts functions and methods into tools.
//!
//! The function itself is kept. The generated code converts the JSON arguments of a call to the types of the function's
//! arguments.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, ItemFn, Lit, LitStr, Meta, Pat, PatType, Path, Result,
    ReturnType, Signature, Token, Type, ext::IdentExt, parse::ParseStream, parse::Parser, parse2,
    spanned::Spanned,
};

use crate::{
    block::{parse_crate_path, parse_options},
    hooks::take_attribute,
};

pub(crate) fn expand(options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let mut options = ToolOptions::parse(options)?;
    let kernel = match options.kernel.take() {
        Some(kernel) => kernel,
        None => parse2(quote!(::bub))?,
    };
    let mut function: ItemFn = parse2(function)?;
    if let Some(receiver) = function.sig.receiver() {
        let message = "`#[tool]` does not support methods; put `#[tools]` on the `impl` block";
        return Err(Error::new(receiver.span(), message));
    }
    let definition = ToolDefinition::parse(Ok(options), &function.attrs, &mut function.sig)?;
    let tool = definition.expand(&kernel, &Callee::Function);
    let ident = &definition.ident;
    let attributes = &function.attrs;
    let visibility = std::mem::replace(&mut function.vis, syn::Visibility::Inherited);
    let inner = ItemFn {
        attrs: lint_attributes(attributes),
        ..function.clone()
    };
    Ok(quote! {
        #(#attributes)*
        #visibility fn #ident() -> impl #kernel::tool::Tool {
            #[allow(
                clippy::needless_pass_by_value, clippy::similar_names, clippy::too_many_arguments, clippy::unnecessary_wraps,
                clippy::unused_async, reason = "the tool determines the signature of the function"
            )]
            #inner

            #tool
        }
    })
}

/// The definition of a tool, from a function or method.
pub(crate) struct ToolDefinition {
    pub(crate) ident: Ident,
    pub(crate) name: String,
    description: String,
    options: ToolOptions,
    context: Option<ContextArgument>,
    parameters: Vec<Parameter>,
    is_async: bool,
    output: ReturnType,
}

/// The code that a tool calls.
pub(crate) enum Callee {
    /// A function in scope.
    Function,
    /// A method of `Self`. The generated code calls it on `this`, an `Arc<Self>` that all tools of the block share.
    Method,
}

impl ToolDefinition {
    /// Parses the definition of a tool. Removes the attributes of its arguments from the signature, even after an
    /// error, because the compiler would report each attribute as a further error.
    pub(crate) fn parse(
        options: Result<ToolOptions>,
        attributes: &[Attribute],
        signature: &mut Signature,
    ) -> Result<Self> {
        let ident = signature.ident.clone();
        let parameters = parse_parameters(signature);
        let options = options?;
        if !signature.generics.params.is_empty() {
            let message = "a tool cannot be generic: use concrete types";
            return Err(Error::new(signature.generics.span(), message));
        }
        let description = doc_comment_text(attributes);
        if description.is_empty() {
            let message = "missing doc comment: the model reads it to learn what the tool does and when to use it; put helper methods into another `impl` block";
            return Err(Error::new(ident.span(), message));
        }
        let (context, parameters) = parameters?;
        let name = match &options.name {
            Some(name) => name.clone(),
            None => check_tool_name(ident.unraw().to_string(), ident.span())?,
        };
        Ok(Self {
            ident,
            name,
            description,
            options,
            context,
            parameters,
            is_async: signature.asyncness.is_some(),
            output: signature.output.clone(),
        })
    }

    /// Returns the expression that creates the tool.
    pub(crate) fn expand(&self, kernel: &Path, callee: &Callee) -> TokenStream {
        let Self {
            name, description, ..
        } = self;
        let ToolOptions {
            exposure,
            read_only,
            deferred,
            renderer,
            output,
            ..
        } = &self.options;
        let parameter_specs = self.parameters.iter().map(|Parameter { name, ty, description, default, .. }| match default {
            None => quote_spanned!(ty.span()=> #kernel::tool::ToolParameter::new::<#ty>(#name, #description, false)),
            Some(default) => {
                let value = quote_spanned!(default.span()=> || -> #ty { #default });
                quote_spanned!(ty.span()=> #kernel::tool::ToolParameter::with_default::<#ty>(#name, #description, #value))
            }
        });
        let exposure = format_ident!("{}", exposure.unwrap_or("Auto"));
        let output = output
            .as_ref()
            .map(|output| quote!(spec.output_schema = ::core::option::Option::Some(#output());));
        let renderer = renderer
            .as_ref()
            .map(|renderer| quote!(.with_renderer(#renderer)));
        let aliases = self.parameters.iter().filter_map(|Parameter { name, alias, .. }| {
            let alias = alias.as_ref()?;
            Some(quote!((::std::string::String::from(#alias), ::std::string::String::from(#name))))
        });
        let converted = self.parameters.iter().map(|Parameter { name, ty, default, .. }| {
            let default = default.as_ref().map_or_else(
                || quote!(::core::option::Option::None),
                |default| quote_spanned!(default.span()=> ::core::option::Option::Some(|| -> #ty { #default })),
            );
            quote!(arguments.take::<#ty>(#name, #default))
        });
        let values = self.argument_variables();
        let result = self.call_expression(kernel, callee, &values);
        let share = match callee {
            Callee::Function => None,
            Callee::Method => Some(quote!(let this = ::std::sync::Arc::clone(&this);)),
        };
        quote! {
            #kernel::tool::FunctionTool::new(
                {
                    let parameters = #kernel::tool::parameters_schema([#(#parameter_specs),*]);
                    let mut spec = #kernel::tool::ToolSpec::new(#name, #description, parameters);
                    spec.exposure = #kernel::tool::ToolExposure::#exposure;
                    spec.deferred = #deferred;
                    spec.read_only = #read_only;
                    spec.aliases = ::std::vec![#(#aliases),*];
                    #output
                    spec
                },
                move |mut arguments: #kernel::tool::Arguments, context: #kernel::tool::ToolContext| {
                    #share
                    async move {
                        let _ = &context;
                        let (#(::core::option::Option::Some(#values),)* true) =
                            (#(#converted,)* arguments.is_valid())
                        else {
                            return ::core::result::Result::Err(arguments.into_error());
                        };
                        #result
                    }
                },
            )#renderer
        }
    }

    /// Returns the variables that hold the converted arguments.
    fn argument_variables(&self) -> Vec<Ident> {
        (0..self.parameters.len())
            .map(|index| format_ident!("argument_{index}"))
            .collect()
    }

    /// Returns the expression that calls the function and converts its result to JSON.
    fn call_expression(&self, kernel: &Path, callee: &Callee, values: &[Ident]) -> TokenStream {
        let ident = &self.ident;
        let context = self.context.as_ref().map(|context| match context {
            ContextArgument::Borrowed => quote!(&context,),
            ContextArgument::Owned => quote!(context,),
        });
        let call = match callee {
            Callee::Function => quote_spanned!(ident.span()=> #ident(#context #(#values),*)),
            Callee::Method => {
                let this = quote!(&this);
                quote_spanned!(ident.span()=> Self::#ident(#this, #context #(#values),*))
            }
        };
        let outcome = if self.is_async {
            quote!(#call.await)
        } else {
            quote!(#kernel::tool::run_blocking(move || #call).await?)
        };
        let value = quote_spanned!(self.output.span()=> #kernel::tool::result_to_value);
        if returns_result(&self.output) {
            quote!(#outcome.map_err(#kernel::tool::tool_error).and_then(#value))
        } else {
            quote!(#value(#outcome))
        }
    }
}

/// The options of `#[tool]`.
#[derive(Default)]
pub(crate) struct ToolOptions {
    pub(crate) kernel: Option<Path>,
    name: Option<String>,
    read_only: bool,
    /// The variant of `ToolExposure`, if it is not the default.
    exposure: Option<&'static str>,
    deferred: bool,
    /// The function that returns the text of a result.
    renderer: Option<Path>,
    /// The function that returns the JSON Schema of the result.
    output: Option<Path>,
}

impl ToolOptions {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        let parser =
            |input: ParseStream<'_>| parse_options(input, |input| options.parse_option(input));
        parser.parse2(tokens)?;
        Ok(options)
    }

    fn parse_option(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(Token![crate]) {
            self.kernel = Some(parse_crate_path(input)?);
            return Ok(());
        }
        let option = input.call(Ident::parse_any)?;
        match option.to_string().as_str() {
            "read_only" => self.read_only = true,
            "command_only" => self.exposure = Some("Command"),
            "code_only" => self.exposure = Some("Code"),
            "direct" => self.exposure = Some("Direct"),
            "deferred" => self.deferred = true,
            "render" => self.renderer = Some(parse_path(input)?),
            "output" => self.output = Some(parse_path(input)?),
            "name" => {
                input.parse::<Token![=]>()?;
                let name = input.parse::<LitStr>()?;
                self.name = Some(check_tool_name(name.value(), name.span())?);
            }
            other => {
                let message = format!(
                    "unknown option `{other}`; available options: `name = \"…\"`, `read_only`, `command_only`, `code_only`, `direct`, `deferred`, `render = path`, `output = path`, `crate = path`"
                );
                return Err(Error::new(option.span(), message));
            }
        }
        Ok(())
    }
}

/// Parses `= path` of an option.
fn parse_path(input: ParseStream<'_>) -> Result<Path> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Checks the name of a tool. Providers accept letters, digits, `_` and `-`; dots are sent as underscores.
fn check_tool_name(name: String, span: Span) -> Result<String> {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
        let message = "invalid tool name: expected 1 to 64 ASCII letters, digits, `.`, `_` or `-`";
        return Err(Error::new(span, message));
    }
    Ok(name)
}

/// How the function of a tool takes its argument of the type `ToolContext`.
enum ContextArgument {
    Owned,
    Borrowed,
}

struct Parameter {
    name: String,
    ty: Type,
    description: String,
    default: Option<TokenStream>,
    /// Another name of the argument.
    alias: Option<String>,
}

/// Parses the arguments after `self` and removes their attributes, even after an error.
fn parse_parameters(
    signature: &mut Signature,
) -> Result<(Option<ContextArgument>, Vec<Parameter>)> {
    let (mut context, mut parameters) = (None, Vec::new());
    let mut errors: Option<Error> = None;
    let arguments = signature.inputs.iter_mut().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed),
        FnArg::Receiver(_) => None,
    });
    for (index, typed) in arguments.enumerate() {
        let parameter = parse_parameter(typed);
        let problem = match (context_argument(&typed.ty), index) {
            (Some(argument), 0) => {
                context = Some(argument);
                None
            }
            (Some(_), _) => {
                let message =
                    "the context must be the first argument of a tool; move it to the front";
                Some(Error::new(typed.span(), message))
            }
            (None, _) => parameter.map(|parameter| parameters.push(parameter)).err(),
        };
        match (&mut errors, problem) {
            (Some(errors), Some(problem)) => errors.combine(problem),
            (None, problem) => errors = problem,
            (Some(_), None) => {}
        }
    }
    errors.map_or(Ok((context, parameters)), Err)
}

fn parse_parameter(typed: &mut PatType) -> Result<Parameter> {
    let default_attribute = take_attribute(&mut typed.attrs, "default");
    let alias = take_attribute(&mut typed.attrs, "alias");
    let description = doc_comment_text(&typed.attrs);
    typed
        .attrs
        .retain(|attribute| !attribute.path().is_ident("doc"));
    let Pat::Ident(pattern) = &*typed.pat else {
        let message =
            "patterns are not supported: a tool argument needs a name, which the model uses";
        return Err(Error::new(typed.pat.span(), message));
    };
    if let Type::Reference(reference) = &*typed.ty {
        let message = "a tool argument cannot be a reference: use an owned type, such as `String` instead of `&str`";
        return Err(Error::new(reference.span(), message));
    }
    Ok(Parameter {
        name: pattern.ident.unraw().to_string(),
        ty: (*typed.ty).clone(),
        description,
        default: default_attribute
            .map(|attribute| parse_default(&attribute))
            .transpose()?,
        alias: alias
            .map(|attribute| attribute.parse_args::<LitStr>())
            .transpose()?
            .map(|alias| alias.value()),
    })
}

/// Parses `#[default(value)]`. A string literal is converted to the type of the argument.
fn parse_default(attribute: &Attribute) -> Result<TokenStream> {
    let Meta::List(list) = &attribute.meta else {
        let message = "missing default value: write `#[default(20)]`";
        return Err(Error::new(attribute.span(), message));
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

/// Returns how the function takes its context, if the type is `ToolContext`.
fn context_argument(ty: &Type) -> Option<ContextArgument> {
    match ty {
        Type::Reference(reference) => {
            context_argument(&reference.elem).map(|_| ContextArgument::Borrowed)
        }
        Type::Path(path) if is_named(&path.path, "ToolContext") => Some(ContextArgument::Owned),
        _ => None,
    }
}

fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, ty) = output else {
        return false;
    };
    matches!(&**ty, Type::Path(path) if is_named(&path.path, "Result"))
}

/// Returns whether the last segment of a path has this name.
pub(crate) fn is_named(path: &Path, name: &str) -> bool {
    let last = path.segments.last();
    last.is_some_and(|last| last.ident == name)
}

/// Returns the attributes `allow` and `expect` of the function.
fn lint_attributes(attributes: &[Attribute]) -> Vec<Attribute> {
    let is_lint = |attribute: &&Attribute| {
        attribute.path().is_ident("allow") || attribute.path().is_ident("expect")
    };
    attributes.iter().filter(is_lint).cloned().collect()
}

/// Returns the doc comment, with the lines of each paragraph joined.
fn doc_comment_text(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    let mut is_new_paragraph = false;
    for line in doc_comment_lines(attributes) {
        for line in line.lines().map(str::trim) {
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

/// Returns the content of the doc attributes: the lines of a doc comment.
pub(crate) fn doc_comment_lines(attributes: &[Attribute]) -> impl Iterator<Item = String> {
    attributes.iter().filter_map(|attribute| {
        let meta = attribute.meta.require_name_value().ok()?;
        match &meta.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(line),
                ..
            }) if meta.path.is_ident("doc") => Some(line.value()),
            _ => None,
        }
    })
}
