//! Settings of bub: declared once, read from every source alike; secrets that cannot be printed,
//! and the one redactor that logs and errors go through.
//!
//! - [`SettingKey`], [`SettingSpec`], [`Section`]: declarations as data. Each crate declares those it reads; the
//!   ones of this crate are [`HOME`], [`ENV_PASS`] and [`ENV_DROP`].
//! - [`Loader`] reads flags, [`Environment`], the workspace's `.env` and `config.yml`, in this order
//!   of strength, merges maps, and gives [`Settings`] or a [`SettingsError`] that says where and what.
//! - [`Settings::get`] gives typed values, [`Settings::get_value`] values by path,
//!   [`Settings::origin`] where they came from, [`Settings::warnings`] what looks like a mistake.
//! - [`ConfigFile`] changes the config file and keeps everything else in it; [`Settings::revised`] says what would be in
//!   force with it.
//! - [`is_public`]: the addresses that need no permission to be reached.
//! - [`Secret`] and [`Redactor`]: every secret that is read is registered, and masked from then on.
//!
//! ```
//! use bub_settings::{AnySetting, Environment, SettingKey, Loader, Section};
//!
//! static COLOUR: SettingKey<String> = SettingKey::new("shop.colour", "red", "The colour of the shop.");
//! static SHOP: &[&dyn AnySetting] = &[&COLOUR];
//!
//! let env = Environment::from_pairs([("BUB_HOME", "/nowhere"), ("BUB_SHOP_COLOUR", "blue")]);
//! let mut settings = Loader::new(env).load()?;
//! settings.register(Section::new("shop", SHOP))?;
//! assert_eq!(settings.get(&COLOUR), "blue");
//! assert_eq!(settings.origin("shop.colour").unwrap().to_string(), "environment variable BUB_SHOP_COLOUR");
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
pub mod text_format;
mod types;
mod unknown_keys;
mod validate;
mod warning;
mod yaml;

pub use dry_run::ValueError;
pub use edit::{ConfigFile, EditError};
pub use environment::Environment;
pub use error::{LookupError, SettingsError};
pub use keys::{ENV_DROP, ENV_PASS, HOME};
pub use load::{Loader, WorkspaceTrust};
pub use lookup::{LookupValue, SettingValue};
pub use public_ip::is_public;
pub use redact::{RedactingWriter, Redactor};
pub use secret::{MASK, Secret, is_sensitive_name};
pub use setting_source::SettingSource;
pub use settings::Settings;
pub use spec::{AnySetting, DynamicSetting, Section, SettingKey, SettingSpec, ValueKind};
pub use suggest::closest;
pub use text_format::{TextFormat, is_base_url, split_port};
pub use types::{PerProvider, SettingType};
pub use warning::SettingsWarning;
pub use yaml::{YamlError, parse_yaml};
