//! The derives `Settings` and `SettingChoice`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, Expr, Field, Fields, Item, LitStr, Path, Result, Token,
    ext::IdentExt,
    parse::{ParseStream, Parser},
    parse2,
    spanned::Spanned,
};

use crate::{
    block::{parse_crate_path, parse_options},
    tool::doc_comment_lines,
};

/// Options of a field. Except for the first two, they are methods of `SettingKey`.
const FIELD_OPTIONS: &str =
    "default, name, env_only, write_as_list, at_least, at_most, format, variable, deprecated_names";

/// Implements `FromSettings` for a struct and declares a constant for each setting.
pub(crate) fn expand_struct(item: TokenStream) -> Result<TokenStream> {
    let Item::Struct(item) = parse2(item)? else {
        let message = "`Settings` needs a struct; for an enum of the words of a setting, derive `SettingChoice`";
        return Err(Error::new(Span::call_site(), message));
    };
    let ident = &item.ident;
    let Fields::Named(fields) = &item.fields else {
        let message = "`Settings` needs named fields: each field is a setting";
        return Err(Error::new(ident.span(), message));
    };
    let options = SettingOptions::parse(&item.attrs, "settings", "section, crate")?;
    let (root, Some(section)) = (options.root, options.section) else {
        let message = "missing section: add `#[settings(section = \"name\")]` to the struct";
        return Err(Error::new(ident.span(), message));
    };
    let (mut names, mut keys, mut declarations) = (Vec::new(), Vec::new(), Vec::new());
    for field in &fields.named {
        let name = field.ident.clone().unwrap_or_else(|| ident.clone());
        let key = name.unraw().to_string().to_uppercase();
        let key = format_ident!("{key}", span = field.ty.span());
        declarations.push(declare_setting(field, &name, &key, &section, &root)?);
        names.push(name);
        keys.push(quote_spanned!(field.ty.span()=> Self::#key));
    }
    Ok(quote! {
        #[automatically_derived]
        impl #ident {
            #(#declarations)*
        }

        #[automatically_derived]
        impl #root::FromSettings for #ident {
            fn section() -> #root::Section {
                #root::Section::new(#section, &[#(#keys),*])
            }

            fn from_settings(settings: &#root::Settings) -> Self {
                Self { #(#names: settings.get(#keys)),* }
            }
        }
    })
}

/// Returns the constant `key` that declares the setting of a field.
fn declare_setting(
    field: &Field,
    name: &Ident,
    key: &Ident,
    section: &str,
    root: &Path,
) -> Result<TokenStream> {
    let options = SettingOptions::parse(&field.attrs, "setting", FIELD_OPTIONS)?;
    let lines: Vec<_> = doc_comment_lines(&field.attrs).collect();
    let lines = lines.iter().map(|line| line.trim());
    let paragraph: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let help = paragraph.join(" ");
    if help.is_empty() {
        let message = "missing doc comment: `bub config` shows its first paragraph as the help of the setting";
        return Err(Error::new(name.span(), message));
    }
    let name = options.name.unwrap_or_else(|| name.unraw().to_string());
    let path = match section {
        "" => name,
        section => format!("{section}.{name}"),
    };
    let (visibility, ty, calls) = (&field.vis, &field.ty, options.calls);
    let default = options.default.map_or_else(
        || quote_spanned!(ty.span()=> <#ty as #root::EmptyDefault>::EMPTY),
        |default| quote!(#default),
    );
    let attributes = field.attrs.iter();
    let docs = attributes.filter(|attribute| attribute.path().is_ident("doc"));
    let key_type = quote_spanned!(ty.span()=> #root::SettingKey::<#ty>);
    Ok(quote! {
        #(#docs)*
        #visibility const #key: &'static #key_type =
            &#key_type::new(#path, #default, #help) #(#calls)*;
    })
}

/// Implements `SettingChoice` for an enum whose variants are the words of a setting.
pub(crate) fn expand_choice(item: TokenStream) -> Result<TokenStream> {
    let Item::Enum(item) = parse2(item)? else {
        let message = "`SettingChoice` needs an enum: each variant is a word";
        return Err(Error::new(Span::call_site(), message));
    };
    let ident = &item.ident;
    let root = SettingOptions::parse(&item.attrs, "settings", "crate")?.root;
    let (mut variants, mut words) = (Vec::new(), Vec::new());
    for variant in item.variants {
        if !matches!(variant.fields, Fields::Unit) {
            let message = "a choice is one word: remove the fields of the variant";
            return Err(Error::new(variant.fields.span(), message));
        }
        let options = SettingOptions::parse(&variant.attrs, "setting", "name")?;
        let word = options.name.unwrap_or_else(|| kebab_case(&variant.ident));
        words.push(word);
        variants.push(variant.ident);
    }
    Ok(quote! {
        #[automatically_derived]
        impl #root::SettingChoice for #ident {
            const WORDS: &'static [&'static str] = &[#(#words),*];
            const VALUES: &'static [Self] = &[#(Self::#variants),*];
        }
    })
}

/// The options in `#[settings(…)]` on a struct or enum, or in `#[setting(…)]` on a field or variant.
struct SettingOptions {
    section: Option<String>,
    root: Path,
    name: Option<String>,
    default: Option<Expr>,
    /// Calls of methods of `SettingKey`.
    calls: Vec<TokenStream>,
}

impl SettingOptions {
    fn parse(attributes: &[Attribute], attribute: &str, allowed: &str) -> Result<Self> {
        let mut options = Self {
            section: None,
            root: parse2(quote!(::bub::settings))?,
            name: None,
            default: None,
            calls: Vec::new(),
        };
        let attributes = attributes.iter();
        for attribute in attributes.filter(|other| other.path().is_ident(attribute)) {
            let parser = |input: ParseStream<'_>| {
                parse_options(input, |input| options.parse_option(input, allowed))
            };
            parser.parse2(attribute.meta.require_list()?.tokens.clone())?;
        }
        Ok(options)
    }

    fn parse_option(&mut self, input: ParseStream<'_>, allowed: &str) -> Result<()> {
        let option = input.fork().call(Ident::parse_any)?;
        if allowed.split(", ").all(|name| option != name) {
            let message = format!("unknown option `{option}`; available options: {allowed}");
            return Err(Error::new(option.span(), message));
        }
        if option == "crate" {
            self.root = parse_crate_path(input)?;
            return Ok(());
        }
        input.call(Ident::parse_any)?;
        if !input.peek(Token![=]) {
            self.calls.push(quote!(.#option()));
            return Ok(());
        }
        input.parse::<Token![=]>()?;
        match option.to_string().as_str() {
            "section" => self.section = Some(parse_section(&input.parse()?)?),
            "name" => self.name = Some(input.parse::<LitStr>()?.value()),
            "default" => self.default = Some(input.parse()?),
            _ => {
                let value: Expr = input.parse()?;
                self.calls.push(quote!(.#option(#value)));
            }
        }
        Ok(())
    }
}

fn parse_section(name: &LitStr) -> Result<String> {
    let is_allowed = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    if !name.value().chars().all(is_allowed) {
        let message = "invalid section: expected lowercase letters, digits and `_`";
        return Err(Error::new(name.span(), message));
    }
    Ok(name.value())
}

/// Returns `read-only` for `ReadOnly`.
fn kebab_case(name: &Ident) -> String {
    let mut text = String::new();
    for char in name.unraw().to_string().chars() {
        if char.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(char.to_lowercase());
    }
    text
}
