//! The common part of the attributes on `impl` blocks, `#[hooks]` and `#[tools]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Error, ItemImpl, Path, Result, Token,
    parse::{ParseStream, Parser},
    parse2,
    spanned::Spanned,
};

/// Parses the options of `attribute` and an inherent `impl` block, and returns the result of `expand`.
///
/// `expand` gets the path of the kernel and the block. After a parse error, the block is kept unchanged, so that the
/// compiler reports no further errors about missing methods.
pub(crate) fn expand_block(
    attribute: &str,
    options: TokenStream,
    block: &TokenStream,
    expand: impl FnOnce(&Path, ItemImpl) -> TokenStream,
) -> TokenStream {
    let parse = || -> Result<(Path, ItemImpl)> {
        let kernel = parse_options(options)?;
        let item: ItemImpl = parse2(block.clone())?;
        match &item.trait_ {
            Some((_, path, _)) => {
                let message = format!(
                    "`#[{attribute}]` does not support trait impls; put it on an inherent `impl` block"
                );
                Err(Error::new(path.span(), message))
            }
            None => Ok((kernel, item)),
        }
    };
    match parse() {
        Ok((kernel, item)) => expand(&kernel, item),
        Err(error) => {
            let error = error.to_compile_error();
            quote! { #block #error }
        }
    }
}

/// Parses the options of a block, which are empty or `crate = path`, and returns the path of the kernel.
fn parse_options(options: TokenStream) -> Result<Path> {
    if options.is_empty() {
        return parse2(quote!(::bub));
    }
    parse_crate_path.parse2(options)
}

/// Parses the option `crate = path`. A path without `crate` or a leading `::` gets a leading `::`.
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
