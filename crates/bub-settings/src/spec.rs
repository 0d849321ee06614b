//! Declarations of settings as data.
//!
//! Reading, validation, error messages, `bub config` and the reference page use them.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::mem;

use serde_json::Value;

use crate::{SettingType, TextFormat};

/// Kind of a setting's value, as a user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// Text, used as written.
    Text,
    /// A path; a leading `~` is the user's home directory.
    Path,
    /// `true` or `false`; also 1/0, yes/no, on/off.
    Bool,
    /// An integer.
    Integer,
    /// A number, with an optional fraction.
    Number,
    /// A list of texts; also written as comma-separated text.
    List,
    /// A free-form map.
    Map,
    /// A list of free-form maps.
    Maps,
    /// One text for all providers, or a map of provider to text.
    PerProvider,
    /// One of the given words.
    Choice(&'static [&'static str]),
}

/// The declaration of a setting without its Rust type: key, kind, limits and help.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags, set by name in the builder"
)]
pub struct SettingSpec {
    key: Cow<'static, str>,
    deprecated_names: &'static [&'static str],
    help: Cow<'static, str>,
    kind: ValueKind,
    variable: Variable,
    nullable: bool,
    secret: bool,
    trusted: bool,
    in_file: bool,
    listed: bool,
    min: Option<i64>,
    max: Option<i64>,
    form: Option<&'static TextFormat>,
}

/// Name of a setting in the environment.
#[derive(Debug, Clone)]
enum Variable {
    /// `BUB_` and the key in upper case, with underscores instead of dots.
    Derived,
    Named(Cow<'static, str>),
}

impl SettingSpec {
    /// Creates a setting that is known only at run time, for example from the manifest of an
    /// external plugin.
    pub fn dynamic(key: impl Into<String>, kind: ValueKind, help: impl Into<String>) -> Self {
        Self::from_parts(Cow::Owned(key.into()), Cow::Owned(help.into()), kind)
    }

    const fn from_parts(key: Cow<'static, str>, help: Cow<'static, str>, kind: ValueKind) -> Self {
        let variable = Variable::Derived;
        let (min, max, form) = (None, None, None);
        let (nullable, secret, trusted, in_file, listed) = (false, false, false, true, false);
        Self {
            key,
            deprecated_names: &[],
            help,
            kind,
            variable,
            nullable,
            secret,
            trusted,
            in_file,
            listed,
            min,
            max,
            form,
        }
    }

    /// Marks the value as secret: never shown, always redacted, hidden from child processes.
    #[must_use]
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Forbids the `.env` of an untrusted workspace to set this setting.
    #[must_use]
    pub const fn trusted(mut self) -> Self {
        self.trusted = true;
        self
    }

    /// Allows `null` as a value.
    #[must_use]
    pub const fn nullable(mut self) -> Self {
        self.nullable = true;
        self
    }

    /// Returns the full dotted key, including the section.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the former keys, which still work with a warning.
    pub fn deprecated_names(&self) -> &'static [&'static str] {
        self.deprecated_names
    }

    /// Returns the key, then the former keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.key()).chain(self.deprecated_names.iter().copied())
    }

    /// Returns the help text, one sentence for the reference page.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// Returns the kind of the value.
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// Returns whether the value must never be shown.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// Returns whether the `.env` of an untrusted workspace must not set this setting.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Returns whether `null` is a valid value.
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// Returns whether the config file may set this setting.
    pub fn is_in_file(&self) -> bool {
        self.in_file
    }

    /// Returns whether several values are written as a YAML list instead of comma-separated text.
    pub(crate) fn is_written_as_list(&self) -> bool {
        self.listed
    }

    /// Returns the environment variable that sets this setting.
    pub fn variable(&self) -> Cow<'_, str> {
        match &self.variable {
            Variable::Named(name) => Cow::Borrowed(name),
            Variable::Derived => Cow::Owned(derived_variable(&self.key)),
        }
    }

    /// Returns the minimum and the maximum of a number.
    pub fn limits(&self) -> (Option<i64>, Option<i64>) {
        (self.min, self.max)
    }

    /// Returns whether the text must have a certain format.
    pub(crate) fn has_format(&self) -> bool {
        self.form.is_some()
    }

    /// Returns whether a text has the required format.
    pub(crate) fn matches_format(&self, text: &str) -> bool {
        self.form.is_none_or(|form| (form.fits)(text))
    }

    /// Returns whether `name` is the variable of this setting or of a former key, ignoring case.
    ///
    /// Does not allocate, because it runs for every setting at startup.
    pub(crate) fn is_variable(&self, name: &str) -> bool {
        let own = match &self.variable {
            Variable::Named(own) => own.eq_ignore_ascii_case(name),
            Variable::Derived => is_derived_variable(&self.key, name),
        };
        own || self.is_deprecated_variable(name)
    }

    /// Returns whether `name` is the variable of a former key, ignoring case.
    pub(crate) fn is_deprecated_variable(&self, name: &str) -> bool {
        let mut names = self.deprecated_names.iter();
        names.any(|key| is_derived_variable(key, name))
    }

    /// Returns the provider in a variable such as `BUB_OPENAI_API_KEY`, for a per-provider setting.
    pub(crate) fn provider_in_variable(&self, name: &str) -> Option<String> {
        if self.kind != ValueKind::PerProvider {
            return None;
        }
        let (prefix, rest) = name.split_at_checked(4)?;
        let (provider, suffix) = rest.split_at_checked(rest.len().checked_sub(self.key.len())?)?;
        let provider = provider
            .strip_suffix('_')
            .filter(|provider| !provider.is_empty())?;
        let ours = prefix.eq_ignore_ascii_case("BUB_") && suffix.eq_ignore_ascii_case(&self.key);
        ours.then(|| provider.to_ascii_lowercase())
    }

    /// Describes what a user should write, for error messages and the reference page.
    pub fn describe_expected(&self) -> String {
        let shape = match self.kind {
            ValueKind::PerProvider if let Some(form) = self.form => {
                format!("{}, or a map of provider to that", form.expected)
            }
            _ if let Some(form) = self.form => form.expected.to_owned(),
            ValueKind::Text => "text".to_owned(),
            ValueKind::Path => "a path".to_owned(),
            ValueKind::Bool => "true or false".to_owned(),
            ValueKind::Integer => "a whole number".to_owned(),
            ValueKind::Number => "a number".to_owned(),
            ValueKind::List => "a list, or comma-separated text".to_owned(),
            ValueKind::Map => "a map".to_owned(),
            ValueKind::Maps => "a list of maps".to_owned(),
            ValueKind::PerProvider => "text, or a map of provider to text".to_owned(),
            ValueKind::Choice(words) => format!("one of {}", words.join(", ")),
        };
        let limits = match (self.min, self.max) {
            (Some(min), Some(max)) => format!(" from {min} to {max}"),
            (Some(min), None) => format!(" of at least {min}"),
            (None, Some(max)) => format!(" of at most {max}"),
            (None, None) => String::new(),
        };
        let null = if self.nullable { ", or null" } else { "" };
        format!("{shape}{limits}{null}")
    }
}

/// Returns the variable of a key: `BUB_` and the key in upper case, with underscores instead of dots.
fn derived_variable(key: &str) -> String {
    format!("BUB_{}", key.to_ascii_uppercase().replace('.', "_"))
}

/// Returns whether `name` is the derived variable of a key, ignoring case. Does not allocate.
fn is_derived_variable(key: &str, name: &str) -> bool {
    let Some((prefix, rest)) = name.split_at_checked(4) else {
        return false;
    };
    let as_key = |(key, byte): (u8, u8)| match key {
        b'.' => byte == b'_',
        _ => key.eq_ignore_ascii_case(&byte),
    };
    prefix.eq_ignore_ascii_case("BUB_")
        && rest.len() == key.len()
        && key.bytes().zip(rest.bytes()).all(as_key)
}

/// A declared setting whose value has the Rust type `T`.
///
/// ```
/// use bub_settings::SettingKey;
///
/// static MAX_TOKENS: SettingKey<u64> =
///     SettingKey::new("max_tokens", 16_384, "Maximum tokens per answer.").at_least(1);
/// ```
pub struct SettingKey<T: SettingType> {
    setting: SettingSpec,
    default: T::Default,
    marker: PhantomData<fn() -> T>,
}

impl<T: SettingType> SettingKey<T> {
    /// Declares a setting with its full dotted key, its default, and one sentence of help.
    ///
    /// The kind, `null` and secrecy follow from the type.
    pub const fn new(key: &'static str, default: T::Default, help: &'static str) -> Self {
        let mut setting = SettingSpec::from_parts(Cow::Borrowed(key), Cow::Borrowed(help), T::KIND);
        setting.nullable = T::NULLABLE;
        setting.secret = T::SECRET;
        setting.min = T::MIN;
        Self {
            setting,
            default,
            marker: PhantomData,
        }
    }

    /// Allows only trusted sources to set this setting; see [`SettingSpec::trusted`].
    #[must_use]
    pub const fn trusted(mut self) -> Self {
        self.setting.trusted = true;
        self
    }

    /// Accepts former keys and their variables, with a warning. The new key has priority in each
    /// source.
    #[must_use]
    pub const fn deprecated_names(mut self, names: &'static [&'static str]) -> Self {
        self.setting.deprecated_names = names;
        self
    }

    /// Sets the minimum of a number.
    #[must_use]
    pub const fn at_least(mut self, min: i64) -> Self {
        self.setting.min = Some(min);
        self
    }

    /// Sets the maximum of a number.
    #[must_use]
    pub const fn at_most(mut self, max: i64) -> Self {
        self.setting.max = Some(max);
        self
    }

    /// Requires a format for the text, or for the text of each provider.
    #[must_use]
    pub const fn format(mut self, form: &'static TextFormat) -> Self {
        self.setting.form = Some(form);
        self
    }

    /// Uses this variable instead of the one derived from the key.
    #[must_use]
    pub const fn variable(mut self, name: &'static str) -> Self {
        // An assignment would drop the old value, which a `const fn` cannot do.
        mem::forget(mem::replace(
            &mut self.setting.variable,
            Variable::Named(Cow::Borrowed(name)),
        ));
        self
    }

    /// Forbids the config file to set this setting.
    ///
    /// For settings that are needed to find the config file or that belong to another program.
    #[must_use]
    pub const fn env_only(mut self) -> Self {
        self.setting.in_file = false;
        self
    }

    /// Writes several values to the config file as a list.
    ///
    /// The Python version reads most of its lists as comma-separated text, and some only as lists.
    #[must_use]
    pub const fn write_as_list(mut self) -> Self {
        self.setting.listed = true;
        self
    }

    /// Returns the default as a typed value.
    pub fn default(&self) -> T {
        T::from_default(self.default)
    }
}

/// A declaration without its Rust type, as listed in a [`Section`].
pub trait AnySetting: Send + Sync {
    /// Returns the declaration.
    fn setting(&self) -> &SettingSpec;

    /// Returns the default, for the reference page and for lookups by path.
    fn default_value(&self) -> Value;
}

impl<T: SettingType> AnySetting for SettingKey<T> {
    fn setting(&self) -> &SettingSpec {
        &self.setting
    }

    fn default_value(&self) -> Value {
        T::default_value(self.default)
    }
}

/// A declaration made at run time.
#[derive(Debug, Clone)]
pub struct DynamicSetting {
    /// The declaration.
    pub setting: SettingSpec,
    /// The default.
    pub default: Value,
}

impl AnySetting for DynamicSetting {
    fn setting(&self) -> &SettingSpec {
        &self.setting
    }

    fn default_value(&self) -> Value {
        self.default.clone()
    }
}

/// A group of settings: the map of that name in the config file.
///
/// The root section has an empty name. A plugin adds a section with the plugin's name.
pub struct Section {
    pub(crate) name: Cow<'static, str>,
    pub(crate) keys: SectionSettings,
}

pub(crate) enum SectionSettings {
    Static(&'static [&'static dyn AnySetting]),
    Dynamic(Vec<DynamicSetting>),
}

impl Section {
    /// Creates a section of settings that are declared in the program. Every key starts with
    /// `<name>.`.
    pub const fn new(name: &'static str, keys: &'static [&'static dyn AnySetting]) -> Self {
        Self {
            name: Cow::Borrowed(name),
            keys: SectionSettings::Static(keys),
        }
    }

    /// Creates a section of settings that are declared at run time.
    pub fn dynamic(name: impl Into<String>, keys: Vec<DynamicSetting>) -> Self {
        Self {
            name: Cow::Owned(name.into()),
            keys: SectionSettings::Dynamic(keys),
        }
    }
}
