//! Settings that several crates read: owners and tape durability.

use bub_settings::{AnySetting, Section, SettingChoice, SettingKey};

use crate::Role;

/// The senders with the owner role.
pub static OWNERS: SettingKey<Vec<String>> = SettingKey::new(
    "owners",
    "",
    "Senders with the owner role, as `channel:id`, separated by commas.",
);

/// The failures that acknowledged tape entries survive.
pub static TAPE_DURABILITY: SettingKey<TapeDurability> = SettingKey::new(
    "tape.durability",
    TapeDurability::Os,
    "Failures that tape entries survive. `os`: a crash of bub; `always`: also power loss.",
);

/// The value of [`TAPE_DURABILITY`]: the failures that acknowledged tape entries survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SettingChoice)]
#[settings(crate = bub_settings)]
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

/// The highest role is listed first.
impl SettingChoice for Role {
    const WORDS: &'static [&'static str] = &["owner", "member", "guest"];
    const VALUES: &'static [Self] = &[Self::Owner, Self::Member, Self::Guest];
}

static ROOT: &[&dyn AnySetting] = &[&OWNERS];
static TAPE: &[&dyn AnySetting] = &[&TAPE_DURABILITY];

/// Returns the sections of the settings in this module, for `Loader::sections`. The section with an empty name adds its
/// settings to the root section.
pub fn sections() -> [Section; 2] {
    [Section::new("", ROOT), Section::new("tape", TAPE)]
}
