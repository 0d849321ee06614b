//! Settings that several crates read: owners, and where and how tapes are kept, and which media requests include.

use bub_settings::{AnySetting, Section, SettingChoice, SettingKey, Settings, text_format};
use bub_tape::{FileStore, MediaLimit};

use crate::Role;

/// The senders with the owner role.
pub static OWNERS: SettingKey<Vec<String>> = SettingKey::new(
    "owners",
    "",
    "Senders with the owner role, as `channel:id`, separated by commas.",
);

/// The text that starts a command.
pub static COMMAND_PREFIX: SettingKey<String> = SettingKey::new(
    "command_prefix",
    ",",
    "Text that starts a command, without white space.",
)
.format(&text_format::COMMAND_PREFIX);

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

/// Where tapes are kept.
pub static TAPE_STORAGE: SettingKey<TapeStorage> = SettingKey::new(
    "tape.storage",
    TapeStorage::File,
    "Where tapes are kept. `file`: in the home directory; `memory`: nowhere after the process ends.",
);

/// The value of [`TAPE_STORAGE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SettingChoice)]
#[settings(crate = bub_settings)]
pub enum TapeStorage {
    /// Tapes are files in the home directory.
    #[default]
    File,
    /// Tapes are lost when the process ends.
    Memory,
}

/// How changes of tapes can be proved.
pub static TAPE_INTEGRITY: SettingKey<TapeIntegrity> = SettingKey::new(
    "tape.integrity",
    TapeIntegrity::None,
    "Proof that tapes were not altered. `chain`: new entries get a hash chain, which `bub tape verify` checks.",
);

/// The value of [`TAPE_INTEGRITY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SettingChoice)]
#[settings(crate = bub_settings)]
pub enum TapeIntegrity {
    /// Entries have no hash.
    #[default]
    None,
    /// Each entry has a hash of itself and of the entry before it.
    Chain,
}

impl From<TapeDurability> for bub_tape::Durability {
    fn from(durability: TapeDurability) -> Self {
        match durability {
            TapeDurability::Os => Self::Os,
            TapeDurability::Always => Self::Always,
        }
    }
}

/// Maximum number of media of earlier turns in a request.
pub static MEDIA_MAX_ITEMS: SettingKey<u64> = SettingKey::new(
    "media.max_items",
    20,
    "Maximum images, recordings and videos of earlier turns in a request; 0 sends them only in their own turn.",
);

/// Maximum size of media of earlier turns in a request.
pub static MEDIA_MAX_MB: SettingKey<u64> = SettingKey::new(
    "media.max_mb",
    12,
    "Maximum megabytes of images, recordings and videos of earlier turns in a request.",
);

/// Returns how many media of earlier turns a request includes.
pub fn media_limit(settings: &Settings) -> MediaLimit {
    let items = settings.get(&MEDIA_MAX_ITEMS);
    MediaLimit {
        items: usize::try_from(items).unwrap_or(usize::MAX),
        bytes: settings.get(&MEDIA_MAX_MB).saturating_mul(1_000_000),
    }
}

/// Returns the store of the tape files in the home, with the durability and the integrity of the settings.
pub fn file_store(settings: &Settings) -> FileStore {
    let durability = settings.get(&TAPE_DURABILITY).into();
    let store = FileStore::new(settings.home().join("tapes"), durability);
    match settings.get(&TAPE_INTEGRITY) {
        TapeIntegrity::None => store,
        TapeIntegrity::Chain => store.with_chain(),
    }
}

/// The highest role is listed first.
impl SettingChoice for Role {
    const WORDS: &'static [&'static str] = &["owner", "member", "guest"];
    const VALUES: &'static [Self] = &[Self::Owner, Self::Member, Self::Guest];
}

static ROOT: &[&dyn AnySetting] = &[&OWNERS, &COMMAND_PREFIX];
static TAPE: &[&dyn AnySetting] = &[&TAPE_DURABILITY, &TAPE_STORAGE, &TAPE_INTEGRITY];
static MEDIA: &[&dyn AnySetting] = &[&MEDIA_MAX_ITEMS, &MEDIA_MAX_MB];

/// Returns the sections of the settings in this module, for `Loader::sections`. The section with an empty name adds its
/// settings to the root section.
pub fn sections() -> [Section; 3] {
    [
        Section::new("", ROOT),
        Section::new("tape", TAPE),
        Section::new("media", MEDIA),
    ]
}
