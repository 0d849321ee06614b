//! Settings of bub, secrets that cannot be printed, and the redactor for logs and errors.
//!
//! A setting is declared once and can then be set in every source.
//!
//! - [`SettingKey`], [`SettingSpec`], [`Section`]: declarations as data. Each crate declares the
//!   settings it reads. This crate declares [`HOME`], [`ENV_PASS`] and [`ENV_DROP`].
//! - [`Loader`] reads flags, [`Environment`], a trusted `.env` and `config.yml`, with the
//!   highest precedence first. It merges maps and returns [`Settings`], or a [`SettingsError`] with
//!   the location and the cause.
//! - [`Settings::get`] returns a typed value, and [`Settings::get_value`] returns a value by path.
//!   [`Settings::origin`] returns the source of a value. [`Settings::warnings`] returns likely
//!   mistakes.
//! - [`ConfigFile`] edits the config file and keeps the rest of it unchanged. [`Settings::with_config_text`]
//!   returns the settings that an edited file would produce.
//! - [`is_public`]: whether an IP address belongs to the public internet.
//! - [`WorkspaceTrust`]: which files of a workspace may change how bub works.
//! - [`Secret`] and [`Redactor`]: every secret that bub reads is registered and masked from then
//!   on.
//!
//! ```
//! use bub_settings::{AnySetting, Environment, SettingKey, Loader, Section};
//!
//! static COLOR: SettingKey<String> = SettingKey::new("shop.color", "red", "The color of the shop.");
//! static SHOP: &[&dyn AnySetting] = &[&COLOR];
//!
//! let env = Environment::from_pairs([("BUB_HOME", "/nowhere"), ("BUB_SHOP_COLOR", "blue")]);
//! let mut settings = Loader::new(env).load()?;
//! settings.register(Section::new("shop", SHOP))?;
//! assert_eq!(settings.get(&COLOR), "blue");
//! assert_eq!(settings.origin("shop.color").unwrap().to_string(), "environment variable BUB_SHOP_COLOR");
//! # Ok::<(), bub_settings::SettingsError>(())
//! ```

mod child_env;
mod display;
mod dotenv;
mod dry_run;
mod edit;
mod environment;
mod error;
mod files;
mod keys;
mod load;
mod lookup;
mod node;
mod public_ip;
mod redact;
mod resolve;
mod secret;
mod setting_source;
mod settings;
mod sources;
mod spec;
mod suggest;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text_format;
mod trust;
mod types;
mod unknown_keys;
mod validate;
mod warning;
mod yaml;

/// Directory in bub's home with links to the skills of external plugins.
pub const PLUGIN_SKILLS_DIR: &str = "plugins/skills";

pub use bub_macros::{SettingChoice, Settings};
pub use dry_run::ValueError;
pub use edit::{ConfigFile, EditError};
pub use environment::Environment;
pub use error::{LookupError, SettingsError};
pub use keys::{ENV_DROP, ENV_PASS, HOME};
pub use load::Loader;
pub use lookup::{LookupValue, SettingValue};
pub use public_ip::is_public;
pub use redact::{RedactingWriter, Redactor, StreamRedactor};
pub use secret::{MASK, Secret, is_sensitive_name};
pub use setting_source::SettingSource;
pub use settings::{FromSettings, Settings};
pub use spec::{AnySetting, DynamicSetting, Section, SettingKey, SettingSpec, ValueKind};
pub use suggest::closest_match;
pub use text_format::{TextFormat, is_base_url, split_port};
pub use trust::{
    MAX_INSTRUCTIONS_BYTES, TrustItem, TrustItemKind, TrustRecord, TrustReport, TrustedItem,
    WorkspaceTrust,
};
pub use types::{EmptyDefault, PerProvider, SettingChoice, SettingType};
pub use warning::SettingsWarning;
pub use yaml::{YamlError, parse_unique_yaml, parse_yaml};
