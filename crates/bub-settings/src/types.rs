//! Rust types that a setting can have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Secret, ValueKind};

/// A type that can be the value of a setting.
///
/// Implement it for your own enum with [`ValueKind::Choice`]; the serialized names of its variants
/// are the words. Values are validated against the declaration before they reach
/// [`from_value`](Self::from_value).
pub trait SettingType: DeserializeOwned {
    /// Type of the default in a declaration.
    type Default: Copy + Send + Sync + Serialize + 'static;
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
    fn default_value(default: Self::Default) -> Value {
        serde_json::to_value(default).unwrap_or_default()
    }

    /// Converts a validated value; returns `None` if the value does not fit.
    fn from_value(value: Value) -> Option<Self> {
        serde_json::from_value(value).ok()
    }
}

macro_rules! setting_type {
    ($type:ty, $default:ty, $kind:ident $(, $constant:ident: $constant_type:ty = $value:expr)?) => {
        impl SettingType for $type {
            type Default = $default;
            const KIND: ValueKind = ValueKind::$kind;
            $(const $constant: $constant_type = $value;)?

            fn from_default(default: $default) -> Self {
                Self::from(default)
            }
        }
    };
}

setting_type!(bool, bool, Bool);
setting_type!(i64, i64, Integer);
setting_type!(u64, u64, Integer, MIN: Option<i64> = Some(0));
setting_type!(f64, f64, Number);
setting_type!(String, &'static str, Text);
setting_type!(PathBuf, &'static str, Path);
setting_type!(Secret, &'static str, Text, SECRET: bool = true);

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

/// Defaults are comma-separated text, as users write them.
impl SettingType for Vec<String> {
    type Default = &'static str;
    const KIND: ValueKind = ValueKind::List;

    fn from_default(default: &'static str) -> Self {
        let items = default.split(',').filter(|item| !item.is_empty());
        items.map(str::to_owned).collect()
    }

    fn default_value(default: &'static str) -> Value {
        Value::from(Self::from_default(default))
    }
}

impl SettingType for Map<String, Value> {
    type Default = ();
    const KIND: ValueKind = ValueKind::Map;

    fn from_default((): ()) -> Self {
        Self::new()
    }

    fn default_value((): ()) -> Value {
        Value::Object(Self::new())
    }
}

impl SettingType for Vec<Map<String, Value>> {
    type Default = ();
    const KIND: ValueKind = ValueKind::Maps;

    fn from_default((): ()) -> Self {
        Self::new()
    }

    fn default_value((): ()) -> Value {
        Value::Array(Vec::new())
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

/// One value for all providers, values for single providers, or both.
///
/// `api_key: abc` sets the value for all providers. `api_key: {openai: abc}` and
/// `BUB_OPENAI_API_KEY=abc` set the value of one provider, which takes precedence.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<String, Option<T>>")]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
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

impl<T> From<BTreeMap<String, Option<T>>> for PerProvider<T> {
    fn from(map: BTreeMap<String, Option<T>>) -> Self {
        let set = map.into_iter();
        let mut each: BTreeMap<_, _> = set
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        let any = each.remove(ANY_PROVIDER);
        Self { any, each }
    }
}

impl<T: SettingType> SettingType for PerProvider<T> {
    type Default = ();
    const KIND: ValueKind = ValueKind::PerProvider;
    const NULLABLE: bool = true;
    const SECRET: bool = T::SECRET;

    fn from_default((): ()) -> Self {
        Self::from(BTreeMap::new())
    }

    fn from_value(value: Value) -> Option<Self> {
        let map = match value {
            Value::Null => return Some(Self::from_default(())),
            Value::Object(map) => Value::Object(map),
            value => Value::Object(Map::from_iter([(ANY_PROVIDER.to_owned(), value)])),
        };
        serde_json::from_value(map).ok()
    }
}
