//! The settings of the contracts that several crates read: roles and the tape.

use bub_settings::{AnySetting, Section, SettingKey, SettingType, ValueKind};
use serde_json::Value;

use crate::Role;

/// Whose computer it is, seen from a channel. Trusted: it is policy.
pub static OWNERS: SettingKey<Vec<String>> = SettingKey::new(
    "owners",
    "",
    "Who is the owner in a channel: `channel:id`, several with commas between them.",
)
.trusted();

/// What an acknowledged tape entry survives.
pub static TAPE_DURABILITY: SettingKey<TapeDurability> = SettingKey::new(
    "tape.durability",
    TapeDurability::Os,
    "`os`: survives the end of the process; `always`: also the loss of power.",
);

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TapeDurability {
    /// The end of the process, however it ends.
    #[default]
    Os,
    /// The loss of power, too.
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

/// The sections with these settings, for `Loader::sections`. The one without a name adds to the root.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("tape", TAPE)]
}
