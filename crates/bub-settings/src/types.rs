//! Rust types that a setting can have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::{Secret, ValueKind};

/// A type that can be the value of a setting.
///
/// Derive [`SettingChoice`] for your own enum. Values are validated against the declaration before
/// they reach [`from_value`](Self::from_value).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a setting",
    label = "use a type of settings, or derive `SettingChoice` for your own enum"
)]
pub trait SettingType: Sized {
    /// Type of the default in a declaration.
    type Default: Copy + Send + Sync + 'static;
    /// Kind of value that users write.
    const KIND: ValueKind;
    /// Whether `null` is a valid value.
    const NULLABLE: bool = false;
    /// Whether values are secret.
    const SECRET: bool = false;
    /// Smallest number that the type can hold.
    const MIN: Option<i64> = None;

    /// Converts the default to a value of this type.
    fn from_default(default: Self::Default) -> Self;

    /// Converts the default to JSON.
    fn default_value(default: Self::Default) -> Value;

    /// Converts a validated value; returns `None` if the value does not fit.
    fn from_value(value: Value) -> Option<Self>;
}

/// A type that is empty if no source sets the setting, so that its declaration needs no default.
#[diagnostic::on_unimplemented(
    message = "a setting of the type `{Self}` needs a default",
    label = "add `#[setting(default = …)]` to the field, or use `Option<{Self}>`"
)]
pub trait EmptyDefault: SettingType {
    /// The default for the empty value.
    const EMPTY: Self::Default;
}

/// An enum whose variants are the words of a setting. Derive it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a setting",
    label = "use a type of settings, or derive `SettingChoice` for your own enum",
    note = "types of settings: `bool`, `i64`, `u64`, `usize`, `f64`, `String`, `PathBuf`, `Duration`, `Secret`, `Vec<String>`, \
            `Map<String, Value>`, `Vec<Map<String, Value>>`, `PerProvider<String>`, `PerProvider<Secret>`, and `Option` of these"
)]
pub trait SettingChoice: Copy + PartialEq + Send + Sync + 'static {
    /// The words that users write, in the order of `VALUES`.
    const WORDS: &'static [&'static str];
    /// The values.
    const VALUES: &'static [Self];
}

impl<T: SettingChoice> SettingType for T {
    type Default = Self;
    const KIND: ValueKind = ValueKind::Choice(T::WORDS);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        let position = T::VALUES.iter().position(|value| *value == default);
        let word = position.and_then(|position| T::WORDS.get(position));
        Value::from(word.copied())
    }

    fn from_value(value: Value) -> Option<Self> {
        let word = value.as_str()?;
        let position = T::WORDS.iter().position(|other| *other == word)?;
        T::VALUES.get(position).copied()
    }
}

/// Implements [`SettingType`]. `$from` converts a default to a value, and `$json` to JSON.
macro_rules! setting_type {
    ($type:ty, $kind:ident, $default:ty, $from:expr, $json:expr $(, $constant:ident: $constant_type:ty = $value:expr)?) => {
        impl SettingType for $type {
            type Default = $default;
            const KIND: ValueKind = ValueKind::$kind;
            $(const $constant: $constant_type = $value;)?

            fn from_default(default: $default) -> Self {
                $from(default)
            }

            fn default_value(default: $default) -> Value {
                $json(default)
            }

            fn from_value(value: Value) -> Option<Self> {
                serde_json::from_value(value).ok()
            }
        }
    };
}

setting_type!(bool, Bool, bool, Self::from, Value::from);
setting_type!(i64, Integer, i64, Self::from, Value::from);
setting_type!(u64, Integer, u64, Self::from, Value::from, MIN: Option<i64> = Some(0));
setting_type!(usize, Integer, usize, Self::from, Value::from, MIN: Option<i64> = Some(0));
setting_type!(f64, Number, f64, Self::from, Value::from);
setting_type!(String, Text, &'static str, Self::from, Value::from);
setting_type!(PathBuf, Path, &'static str, Self::from, Value::from);
setting_type!(Secret, Text, &'static str, Self::from, Value::from, SECRET: bool = true);
setting_type!(Vec<String>, List, &'static str, split_items, |text| {
    Value::from(split_items(text))
});
setting_type!(Map<String, Value>, Map, (), |()| Self::new(), |()| Value::from(Self::new()));
setting_type!(Vec<Map<String, Value>>, Maps, (), |()| Self::new(), |()| {
    Value::from(Self::new())
});

/// Splits the default of a list: comma-separated text, as users write it.
fn split_items(text: &str) -> Vec<String> {
    let items = text.split(',').filter(|item| !item.is_empty());
    items.map(str::to_owned).collect()
}

impl EmptyDefault for Vec<String> {
    const EMPTY: &'static str = "";
}

impl EmptyDefault for Map<String, Value> {
    const EMPTY: () = ();
}

impl EmptyDefault for Vec<Map<String, Value>> {
    const EMPTY: () = ();
}

/// Written as a number of seconds.
impl SettingType for Duration {
    type Default = Self;
    const KIND: ValueKind = ValueKind::Number;
    const MIN: Option<i64> = Some(0);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        Value::from(default.as_secs_f64())
    }

    fn from_value(value: Value) -> Option<Self> {
        Self::try_from_secs_f64(value.as_f64()?).ok()
    }
}

impl<T: SettingType> SettingType for Option<T> {
    type Default = Option<T::Default>;
    const KIND: ValueKind = T::KIND;
    const NULLABLE: bool = true;
    const SECRET: bool = T::SECRET;
    const MIN: Option<i64> = T::MIN;

    fn from_default(default: Self::Default) -> Self {
        default.map(T::from_default)
    }

    fn default_value(default: Self::Default) -> Value {
        default.map_or(Value::Null, T::default_value)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl<T: SettingType> EmptyDefault for Option<T> {
    const EMPTY: Self::Default = None;
}

/// One value for all providers, values for single providers, or both.
///
/// `api_key: abc` sets the value for all providers. `api_key: {openai: abc}` and
/// `BUB_OPENAI_API_KEY=abc` set the value of one provider, which takes precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerProvider<T> {
    any: Option<T>,
    each: BTreeMap<String, T>,
}

/// Key of the entry in a per-provider map that applies to all providers.
pub(crate) const ANY_PROVIDER: &str = "*";

/// Returns the name of a provider as a key of per-provider maps: `Azure-OpenAI` becomes
/// `azure_openai`, as in variable names.
pub(crate) fn provider_key(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

impl<T> PerProvider<T> {
    /// Returns the value to use for a provider: its own value, else the value for all providers.
    pub fn get(&self, provider: &str) -> Option<&T> {
        self.specific_value(provider).or(self.any.as_ref())
    }

    /// Returns the value that is set for this provider only.
    pub fn specific_value(&self, provider: &str) -> Option<&T> {
        self.each.get(&provider_key(provider))
    }

    /// Returns the value that is set for all providers.
    pub fn shared_value(&self) -> Option<&T> {
        self.any.as_ref()
    }

    /// Returns the providers with a separate value.
    pub fn providers(&self) -> impl Iterator<Item = &str> {
        self.each.keys().map(String::as_str)
    }

    /// Returns whether no value is set.
    pub fn is_empty(&self) -> bool {
        self.any.is_none() && self.each.is_empty()
    }
}

impl<T: SettingType> SettingType for PerProvider<T> {
    type Default = ();
    const KIND: ValueKind = ValueKind::PerProvider;
    const NULLABLE: bool = true;
    const SECRET: bool = T::SECRET;

    fn from_default((): ()) -> Self {
        Self {
            any: None,
            each: BTreeMap::new(),
        }
    }

    fn default_value((): ()) -> Value {
        Value::Null
    }

    fn from_value(value: Value) -> Option<Self> {
        let map = match value {
            Value::Object(map) => map,
            value => Map::from_iter([(ANY_PROVIDER.to_owned(), value)]),
        };
        let values = map.into_iter();
        let mut each: BTreeMap<_, _> = values
            .filter_map(|(name, value)| Some((name, T::from_value(value)?)))
            .collect();
        let any = each.remove(ANY_PROVIDER);
        Some(Self { any, each })
    }
}

impl<T: SettingType> EmptyDefault for PerProvider<T> {
    const EMPTY: () = ();
}
