//! Rust types that a setting can have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::{Secret, ValueKind};

/// A type that can be the value of a setting.
///
/// Implement it for your own enum with [`ValueKind::Choice`]. Values are validated against the
/// declaration before they reach [`from_value`](Self::from_value).
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

    /// Converts the default to data.
    fn default_value(default: Self::Default) -> Value;

    /// Converts a validated value; returns `None` if the value does not fit.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! simple_setting_type {
    ($type:ty, $kind:expr, $min:expr, |$value:ident| $read:expr) => {
        impl SettingType for $type {
            type Default = Self;
            const KIND: ValueKind = $kind;
            const MIN: Option<i64> = $min;

            fn from_default(default: Self) -> Self {
                default
            }

            fn default_value(default: Self) -> Value {
                Value::from(default)
            }

            fn from_value($value: Value) -> Option<Self> {
                $read
            }
        }
    };
}

simple_setting_type!(bool, ValueKind::Bool, None, |value| value.as_bool());
simple_setting_type!(i64, ValueKind::Integer, None, |value| value.as_i64());
simple_setting_type!(u64, ValueKind::Integer, Some(0), |value| value.as_u64());
simple_setting_type!(f64, ValueKind::Number, None, |value| value.as_f64());

macro_rules! text_setting_type {
    ($type:ty, $kind:expr, $secret:expr) => {
        impl SettingType for $type {
            type Default = &'static str;
            const KIND: ValueKind = $kind;
            const SECRET: bool = $secret;

            fn from_default(default: &'static str) -> Self {
                Self::from(default)
            }

            fn default_value(default: &'static str) -> Value {
                Value::from(default)
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::String(text) => Some(Self::from(text)),
                    _ => None,
                }
            }
        }
    };
}

text_setting_type!(String, ValueKind::Text, false);
text_setting_type!(PathBuf, ValueKind::Path, false);
text_setting_type!(Secret, ValueKind::Text, true);

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
        default
            .split(',')
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn default_value(default: &'static str) -> Value {
        Value::from(Self::from_default(default))
    }

    fn from_value(value: Value) -> Option<Self> {
        let Value::Array(items) = value else {
            return None;
        };
        items.into_iter().map(String::from_value).collect()
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

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(map),
            _ => None,
        }
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

    fn from_value(value: Value) -> Option<Self> {
        let Value::Array(items) = value else {
            return None;
        };
        items.into_iter().map(Map::from_value).collect()
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerProvider<T> {
    any: Option<T>,
    each: BTreeMap<String, T>,
}

/// Entry of a per-provider map that applies to all providers.
pub(crate) const ANY_PROVIDER: &str = "*";

/// Returns the name of a provider as a key of per-provider maps: `Azure-OpenAI` becomes
/// `azure_openai`, as in variable names.
pub(crate) fn provider_key(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('-', "_")
}

impl<T> PerProvider<T> {
    /// Returns the value to use for a provider.
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
        let mut values = Self::from_default(());
        match value {
            Value::Null => {}
            Value::Object(map) => {
                for (provider, value) in map.into_iter().filter(|(_, value)| !value.is_null()) {
                    values.each.insert(provider, T::from_value(value)?);
                }
                values.any = values.each.remove(ANY_PROVIDER);
            }
            value => values.any = Some(T::from_value(value)?),
        }
        Some(values)
    }
}
