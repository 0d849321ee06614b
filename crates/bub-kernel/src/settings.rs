//! Settings that several crates read: owners and tape durability.

use bub_settings::{AnySetting, Section, SettingKey, SettingType, ValueKind};
use serde_json::Value;

use crate::Role;

/// The senders with the owner role.
///
/// The `.env` of a workspace cannot set it, because the setting grants permissions.
pub static OWNERS: SettingKey<Vec<String>> = SettingKey::new(
    "owners",
    "",
    "Senders with the owner role, as `channel:id`, separated by commas.",
)
.trusted();

/// The durability of acknowledged tape entries.
pub static TAPE_DURABILITY: SettingKey<TapeDurability> = SettingKey::new(
    "tape.durability",
    TapeDurability::Os,
    "Failures that tape entries survive. `os`: a crash of bub; `always`: also power loss.",
);

/// The durability of acknowledged tape entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TapeDurability {
    /// Entries survive the end of the process, including a crash.
    #[default]
    Os,
    /// Entries also survive power loss.
    Always,
}

impl From<TapeDurability> for bub_tape::Durability {
    fn from(durability: TapeDurability) -> Self {
        match durability {
            TapeDurability::Os => Self::Os,
            TapeDurability::Always => Self::Always,
        }
    }
}

impl SettingType for TapeDurability {
    type Default = Self;
    const KIND: ValueKind = ValueKind::Choice(&["os", "always"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        match default {
            Self::Os => Value::from("os"),
            Self::Always => Value::from("always"),
        }
    }

    fn from_value(value: Value) -> Option<Self> {
        match value.as_str()? {
            "os" => Some(Self::Os),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

impl SettingType for Role {
    type Default = Self;
    const KIND: ValueKind = ValueKind::Choice(&["owner", "member", "guest"]);

    fn from_default(default: Self) -> Self {
        default
    }

    fn default_value(default: Self) -> Value {
        Value::from(default.name())
    }

    fn from_value(value: Value) -> Option<Self> {
        Self::from_name(value.as_str()?)
    }
}

static ROOT: &[&dyn AnySetting] = &[&OWNERS];
static TAPE: &[&dyn AnySetting] = &[&TAPE_DURABILITY];

/// Returns the sections of these settings, for `Loader::sections`. The section without a name extends the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("tape", TAPE)]
}
