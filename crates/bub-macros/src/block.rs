//! The common part of the attributes on `impl` blocks, `#[hooks]` and `#[tools]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Error, Ident, ItemImpl, Path, Result, Signature, Token,
    parse::{ParseStream, Parser},
    parse2,
    spanned::Spanned,
};

/// Parses the options of `attribute` and an inherent `impl` block, and returns the result of `expand`.
///
/// `flag` is the option without a value that the attribute accepts, if any. `expand` gets the options and the block. After a
/// parse error, the block is kept unchanged, so that the compiler reports no further errors about missing methods.
pub(crate) fn expand_block(
    (attribute, flag): (&str, Option<&str>),
    options: TokenStream,
    block: &TokenStream,
    expand: impl FnOnce(&BlockOptions, ItemImpl) -> TokenStream,
) -> TokenStream {
    let parse = || -> Result<(BlockOptions, ItemImpl)> {
        let parse_options = |input: ParseStream<'_>| BlockOptions::parse(input, flag);
        let options = parse_options.parse2(options)?;
        let item: ItemImpl = parse2(block.clone())?;
        match &item.trait_ {
            Some((_, path, _)) => {
                let message = format!(
                    "`#[{attribute}]` does not support trait impls; put it on an inherent `impl` block"
                );
                Err(Error::new(path.span(), message))
            }
            None => Ok((options, item)),
        }
    };
    match parse() {
        Ok((options, item)) => expand(&options, item),
        Err(error) => {
            let error = error.to_compile_error();
            quote! { #block #error }
        }
    }
}

/// The options of a block.
pub(crate) struct BlockOptions {
    /// The path of the kernel, from the option `crate = path`.
    pub(crate) kernel: Path,
    /// Whether the option without a value is set.
    pub(crate) has_flag: bool,
}

impl BlockOptions {
    fn parse(input: ParseStream<'_>, flag: Option<&str>) -> Result<Self> {
        let mut options = Self {
            kernel: parse2(quote!(::bub))?,
            has_flag: false,
        };
        parse_options(input, |input| {
            if input.peek(Token![crate]) {
                options.kernel = parse_crate_path(input)?;
                return Ok(());
            }
            let name: Ident = input.parse()?;
            if flag.is_none_or(|flag| name != flag) {
                let flag = flag.map_or_else(String::new, |flag| format!("`{flag}`, "));
                let message =
                    format!("unknown option `{name}`; available options: {flag}`crate = path`");
                return Err(Error::new(name.span(), message));
            }
            options.has_flag = true;
            Ok(())
        })?;
        Ok(options)
    }
}

/// Checks that a method of a block with `attribute` takes `&self`. `purpose` says why it must.
pub(crate) fn check_receiver(signature: &Signature, attribute: &str, purpose: &str) -> Result<()> {
    match signature.receiver() {
        Some(receiver) if receiver.reference.is_some() && receiver.mutability.is_none() => Ok(()),
        _ => {
            let ident = &signature.ident;
            let message = format!(
                "`{ident}` must take `&self` to {purpose}; move helper functions to an `impl` block without `#[{attribute}]`"
            );
            Err(Error::new(ident.span(), message))
        }
    }
}

/// Parses options that are separated by commas.
pub(crate) fn parse_options(
    input: ParseStream<'_>,
    mut parse_option: impl FnMut(ParseStream<'_>) -> Result<()>,
) -> Result<()> {
    while !input.is_empty() {
        parse_option(input)?;
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

/// Parses the option `crate = path`. A path that starts with neither `crate` nor `::` gets a leading `::`.
pub(crate) fn parse_crate_path(input: ParseStream<'_>) -> Result<Path> {
    input.parse::<Token![crate]>()?;
    input.parse::<Token![=]>()?;
    let path = input.call(Path::parse_mod_style)?;
    if path
        .segments
        .first()
        .is_some_and(|first| first.ident == "crate")
        || path.leading_colon.is_some()
    {
        return Ok(path);
    }
    parse2(quote!(::#path))
}
