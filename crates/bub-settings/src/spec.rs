//! Declarations of settings as data.
//!
//! Reading, validation, error messages and `bub config` use the declarations.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

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
    /// Full dotted key, including the section.
    pub key: Cow<'static, str>,
    /// Former keys, which still work with a warning.
    pub deprecated_names: &'static [&'static str],
    /// Help text that `bub config` shows.
    pub help: Cow<'static, str>,
    /// Kind of the value.
    pub kind: ValueKind,
    /// Whether `null` is a valid value.
    pub nullable: bool,
    /// Whether the value is never shown, always redacted, and hidden from child processes.
    pub secret: bool,
    /// Whether the config file may set this setting.
    pub in_file: bool,
    /// Minimum of a number.
    pub min: Option<i64>,
    /// Maximum of a number.
    pub max: Option<i64>,
    /// Environment variable, if it is not [derived](derived_variable) from the key.
    variable: Option<&'static str>,
    /// Whether several values are written as a YAML list instead of comma-separated text.
    pub(crate) write_as_list: bool,
    pub(crate) format: Option<&'static TextFormat>,
}

impl SettingSpec {
    /// Creates a setting that is known only at run time, for example from the manifest of an
    /// external plugin.
    pub fn dynamic(key: impl Into<String>, kind: ValueKind, help: impl Into<String>) -> Self {
        Self::new(Cow::Owned(key.into()), Cow::Owned(help.into()), kind)
    }

    const fn new(key: Cow<'static, str>, help: Cow<'static, str>, kind: ValueKind) -> Self {
        Self {
            key,
            deprecated_names: &[],
            help,
            kind,
            nullable: false,
            secret: false,
            in_file: true,
            min: None,
            max: None,
            variable: None,
            write_as_list: false,
            format: None,
        }
    }

    /// Makes the setting one that no environment variable sets.
    #[must_use]
    pub fn without_variable(mut self) -> Self {
        // No variable has an empty name.
        self.variable = Some("");
        self
    }

    /// Returns the key, then the former keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.key).chain(self.deprecated_names.iter().copied())
    }

    /// Returns the environment variable that sets this setting.
    pub fn variable(&self) -> Cow<'_, str> {
        self.variable
            .map_or_else(|| derived_variable(&self.key).into(), Cow::Borrowed)
    }

    /// Returns the name of the setting in the environment, in capitals.
    pub(crate) fn variable_uppercase(&self) -> String {
        let mut name = self.variable().into_owned();
        name.make_ascii_uppercase();
        name
    }

    /// Returns the variables of the former keys, in capitals.
    pub(crate) fn deprecated_variables(&self) -> impl Iterator<Item = String> {
        self.deprecated_names.iter().copied().map(derived_variable)
    }

    /// Returns whether a text has the required format.
    pub(crate) fn matches_format(&self, text: &str) -> bool {
        self.format.is_none_or(|format| (format.fits)(text))
    }

    /// Returns whether `name` is the variable of this setting or of a former key, ignoring case.
    ///
    /// Does not allocate, because it runs for every setting at startup.
    pub(crate) fn is_variable(&self, name: &str) -> bool {
        let own = match self.variable {
            Some(own) => own.eq_ignore_ascii_case(name),
            None => is_derived_variable(&self.key, name),
        };
        own || self.is_deprecated_variable(name)
    }

    /// Returns whether `name` is the variable of a former key, ignoring case.
    pub(crate) fn is_deprecated_variable(&self, name: &str) -> bool {
        let mut names = self.deprecated_names.iter();
        names.any(|key| is_derived_variable(key, name))
    }

    /// Returns the provider in the name of a variable such as `BUB_OPENAI_API_KEY`. Returns `None`
    /// if the variable does not belong to this setting or names no provider.
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

    /// Describes what a user should write, for error messages and `bub config`.
    pub fn describe_expected(&self) -> String {
        let shape = match (self.kind, self.format) {
            (ValueKind::PerProvider, Some(format)) => {
                &format!("{}, or a map of provider to that", format.expected)
            }
            (_, Some(format)) => format.expected,
            (ValueKind::Text, _) => "text",
            (ValueKind::Path, _) => "a path",
            (ValueKind::Bool, _) => "true or false",
            (ValueKind::Integer, _) => "a whole number",
            (ValueKind::Number, _) => "a number",
            (ValueKind::List, _) => "a list, or comma-separated text",
            (ValueKind::Map, _) => "a map",
            (ValueKind::Maps, _) => "a list of maps",
            (ValueKind::PerProvider, _) => "text, or a map of provider to text",
            (ValueKind::Choice(words), _) => &format!("one of {}", words.join(", ")),
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
    let mut name = key.replace('.', "_");
    name.insert_str(0, "BUB_");
    name.make_ascii_uppercase();
    name
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
#[must_use]
pub struct SettingKey<T: SettingType> {
    setting: SettingSpec,
    default: T::Default,
    marker: PhantomData<fn() -> T>,
}

impl<T: SettingType> SettingKey<T> {
    /// Declares a setting with its full dotted key, its default, and one sentence of help.
    ///
    /// The type `T` decides the kind of the value, whether `null` is valid, and whether the value
    /// is secret.
    pub const fn new(key: &'static str, default: T::Default, help: &'static str) -> Self {
        let mut setting = SettingSpec::new(Cow::Borrowed(key), Cow::Borrowed(help), T::KIND);
        setting.nullable = T::NULLABLE;
        setting.secret = T::SECRET;
        setting.min = T::MIN;
        Self {
            setting,
            default,
            marker: PhantomData,
        }
    }

    /// Accepts former keys and their variables, with a warning. The new key has priority in each
    /// source.
    pub const fn deprecated_names(mut self, names: &'static [&'static str]) -> Self {
        self.setting.deprecated_names = names;
        self
    }

    /// Sets the minimum of a number.
    pub const fn at_least(mut self, min: i64) -> Self {
        self.setting.min = Some(min);
        self
    }

    /// Sets the maximum of a number.
    pub const fn at_most(mut self, max: i64) -> Self {
        self.setting.max = Some(max);
        self
    }

    /// Requires a format for the text, or for the text of each provider.
    pub const fn format(mut self, format: &'static TextFormat) -> Self {
        self.setting.format = Some(format);
        self
    }

    /// Uses this variable instead of the one derived from the key.
    pub const fn variable(mut self, name: &'static str) -> Self {
        self.setting.variable = Some(name);
        self
    }

    /// Forbids the config file to set this setting.
    ///
    /// For settings that are needed to find the config file or that belong to another program.
    pub const fn env_only(mut self) -> Self {
        self.setting.in_file = false;
        self
    }

    /// Makes bub write several values to the config file as a YAML list instead of comma-separated
    /// text.
    ///
    /// The Python version reads most of its lists as comma-separated text, and some only as lists.
    pub const fn write_as_list(mut self) -> Self {
        self.setting.write_as_list = true;
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

    /// Returns the default as JSON, for `bub config` and for lookups by path.
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

/// A named group of settings. In the config file, it is the map with that name.
///
/// The root section has an empty name; its settings are at the top level of the config file. A
/// plugin adds a section with the plugin's name.
#[derive(Clone)]
pub struct Section {
    pub(crate) name: Cow<'static, str>,
    pub(crate) settings: Vec<RegisteredSetting>,
}

/// A setting declared in the program or at run time.
#[derive(Clone)]
pub(crate) enum RegisteredSetting {
    Static(&'static dyn AnySetting),
    Dynamic(Arc<DynamicSetting>),
}

impl Deref for RegisteredSetting {
    type Target = dyn AnySetting;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Static(declared) => *declared,
            Self::Dynamic(declared) => &**declared,
        }
    }
}

impl Section {
    /// Returns whether a variable sets one of the settings, ignoring case. A variable such as `BUB_OPENAI_API_KEY` does if
    /// `is_provider` accepts the name of its provider.
    pub fn has_variable(&self, name: &str, is_provider: impl Fn(&str) -> bool) -> bool {
        self.settings.iter().any(|setting| {
            let setting = setting.setting();
            let provider = setting.provider_in_variable(name);
            setting.is_variable(name) || provider.is_some_and(|provider| is_provider(&provider))
        })
    }

    /// Creates a section of settings that are declared in the program. Every key starts with
    /// `<name>.`.
    pub fn new(name: &'static str, keys: &[&'static dyn AnySetting]) -> Self {
        let keys = keys.iter().copied();
        Self {
            name: Cow::Borrowed(name),
            settings: keys.map(RegisteredSetting::Static).collect(),
        }
    }

    /// Creates a section of settings that are declared at run time.
    pub fn dynamic(name: impl Into<String>, keys: Vec<DynamicSetting>) -> Self {
        let dynamic = |key| RegisteredSetting::Dynamic(Arc::new(key));
        Self {
            name: Cow::Owned(name.into()),
            settings: keys.into_iter().map(dynamic).collect(),
        }
    }
}
