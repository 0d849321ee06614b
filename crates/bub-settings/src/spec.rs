//! Declarations: what a setting is, said once, as data.
//!
//! Reading, validation, error texts, `bub config` and the reference page all come from here.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::mem;

use serde_json::Value;

use crate::{SettingType, TextFormat};

/// The shape of a setting's value, as a user writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// Text, taken as written.
    Text,
    /// A path; a leading `~` is the user's home directory.
    Path,
    /// true or false, also 1/0, yes/no, on/off.
    Bool,
    /// A whole number.
    Integer,
    /// A number, possibly with a fraction.
    Number,
    /// A list of texts, also written with commas between them.
    List,
    /// A free-form map.
    Map,
    /// A list of free-form maps.
    Maps,
    /// One text for all providers, or a map of provider to text.
    PerProvider,
    /// One of a few words.
    Choice(&'static [&'static str]),
}

/// The part of a declaration that does not depend on the Rust type.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent marks, set by name in the builder"
)]
pub struct SettingSpec {
    key: Cow<'static, str>,
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

/// How a setting is named in the environment.
#[derive(Debug, Clone)]
enum Variable {
    /// `BUB_` and the key in capitals, dots as underscores.
    Derived,
    Named(Cow<'static, str>),
}

impl SettingSpec {
    /// A setting known only at run time, for example from the manifest of an external plugin.
    pub fn dynamic(key: impl Into<String>, kind: ValueKind, help: impl Into<String>) -> Self {
        Self::with(Cow::Owned(key.into()), Cow::Owned(help.into()), kind)
    }

    const fn with(key: Cow<'static, str>, help: Cow<'static, str>, kind: ValueKind) -> Self {
        let variable = Variable::Derived;
        let (min, max, form) = (None, None, None);
        let (nullable, secret, trusted, in_file, listed) = (false, false, false, true, false);
        Self {
            key,
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

    /// Marks a value as secret: never shown, always redacted, withheld from child processes.
    #[must_use]
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Marks a setting that the `.env` of an untrusted workspace may not set.
    #[must_use]
    pub const fn trusted(mut self) -> Self {
        self.trusted = true;
        self
    }

    /// Allows `null`.
    #[must_use]
    pub const fn nullable(mut self) -> Self {
        self.nullable = true;
        self
    }

    /// The full dotted key, section included.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// One sentence for the reference page.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// The shape of the value.
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// Whether the value must never be shown.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// Whether the `.env` of an untrusted workspace may not set it.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Whether `null` is a value.
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// Whether the config file may set it.
    pub fn is_in_file(&self) -> bool {
        self.in_file
    }

    /// Whether several values are written as a list, not with commas.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> Cow<'_, str> {
        match &self.variable {
            Variable::Named(name) => Cow::Borrowed(name),
            Variable::Derived => Cow::Owned(format!(
                "BUB_{}",
                self.key.to_ascii_uppercase().replace('.', "_")
            )),
        }
    }

    /// The smallest and the largest number allowed.
    pub fn limits(&self) -> (Option<i64>, Option<i64>) {
        (self.min, self.max)
    }

    /// Whether a form of text is asked for.
    pub(crate) fn has_form(&self) -> bool {
        self.form.is_some()
    }

    /// Whether a text has the form that is asked for.
    pub(crate) fn fits(&self, text: &str) -> bool {
        self.form.is_none_or(|form| (form.fits)(text))
    }

    /// Whether `name` is the variable of this setting, whatever its case. Allocates nothing,
    /// because it is asked for every setting at every start.
    pub(crate) fn is_variable(&self, name: &str) -> bool {
        if let Variable::Named(own) = &self.variable {
            return own.eq_ignore_ascii_case(name);
        }
        let Some((prefix, rest)) = name.split_at_checked(4) else {
            return false;
        };
        let as_key = |(key, byte): (u8, u8)| match key {
            b'.' => byte == b'_',
            _ => key.eq_ignore_ascii_case(&byte),
        };
        prefix.eq_ignore_ascii_case("BUB_")
            && rest.len() == self.key.len()
            && self.key.bytes().zip(rest.bytes()).all(as_key)
    }

    /// For a per-provider setting, the provider that a variable such as `BUB_OPENAI_API_KEY` names.
    pub(crate) fn provider_of(&self, name: &str) -> Option<String> {
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

    /// What a user should write, for error messages and the reference page.
    pub fn expected(&self) -> String {
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
            ValueKind::List => "a list, or texts with commas between them".to_owned(),
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

/// A declared setting whose value has the Rust type `T`.
///
/// ```
/// use bub_settings::SettingKey;
///
/// static MAX_TOKENS: SettingKey<u64> =
///     SettingKey::new("max_tokens", 16_384, "The most tokens one answer may have.").at_least(1);
/// ```
pub struct SettingKey<T: SettingType> {
    setting: SettingSpec,
    default: T::Default,
    marker: PhantomData<fn() -> T>,
}

impl<T: SettingType> SettingKey<T> {
    /// Declares a setting: full dotted key, default, one sentence of help.
    ///
    /// Shape, `null` and secrecy follow from the type, so they cannot disagree with it.
    pub const fn new(key: &'static str, default: T::Default, help: &'static str) -> Self {
        let mut setting = SettingSpec::with(Cow::Borrowed(key), Cow::Borrowed(help), T::KIND);
        setting.nullable = T::NULLABLE;
        setting.secret = T::SECRET;
        setting.min = T::MIN;
        Self {
            setting,
            default,
            marker: PhantomData,
        }
    }

    /// Only a trusted source may set it; see [`SettingSpec::trusted`].
    #[must_use]
    pub const fn trusted(mut self) -> Self {
        self.setting.trusted = true;
        self
    }

    /// The smallest number allowed.
    #[must_use]
    pub const fn at_least(mut self, min: i64) -> Self {
        self.setting.min = Some(min);
        self
    }

    /// The largest number allowed.
    #[must_use]
    pub const fn at_most(mut self, max: i64) -> Self {
        self.setting.max = Some(max);
        self
    }

    /// The text, or that of each provider, has this form.
    #[must_use]
    pub const fn format(mut self, form: &'static TextFormat) -> Self {
        self.setting.form = Some(form);
        self
    }

    /// Uses this variable instead of the one derived from the key.
    #[must_use]
    pub const fn variable(mut self, name: &'static str) -> Self {
        // A plain assignment would drop the old value, which a `const fn` may not do.
        mem::forget(mem::replace(
            &mut self.setting.variable,
            Variable::Named(Cow::Borrowed(name)),
        ));
        self
    }

    /// Says that the config file cannot set it, because it is needed to find the config file or
    /// belongs to another program.
    #[must_use]
    pub const fn env_only(mut self) -> Self {
        self.setting.in_file = false;
        self
    }

    /// Several values are written into the config file as a list: the original reads most of its lists as text with
    /// commas, and some only as lists.
    #[must_use]
    pub const fn write_as_list(mut self) -> Self {
        self.setting.listed = true;
        self
    }

    /// The default as a typed value.
    pub fn default(&self) -> T {
        T::from_default(self.default)
    }
}

/// A declaration without its Rust type: what sections are lists of.
pub trait AnySetting: Send + Sync {
    /// The declaration.
    fn setting(&self) -> &SettingSpec;

    /// The default, for the reference page and for lookups by path.
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

/// Settings that belong together: a map of that name in the config file.
///
/// The root section has an empty name; a plugin adds one named after itself.
pub struct Section {
    pub(crate) name: Cow<'static, str>,
    pub(crate) keys: SectionSettings,
}

pub(crate) enum SectionSettings {
    Static(&'static [&'static dyn AnySetting]),
    Dynamic(Vec<DynamicSetting>),
}

impl Section {
    /// A section of settings declared in the program. Every key starts with `<name>.`.
    pub const fn new(name: &'static str, keys: &'static [&'static dyn AnySetting]) -> Self {
        Self {
            name: Cow::Borrowed(name),
            keys: SectionSettings::Static(keys),
        }
    }

    /// A section of settings declared at run time.
    pub fn dynamic(name: impl Into<String>, keys: Vec<DynamicSetting>) -> Self {
        Self {
            name: Cow::Owned(name.into()),
            keys: SectionSettings::Dynamic(keys),
        }
    }
}
