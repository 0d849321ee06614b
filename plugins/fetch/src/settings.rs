//! Settings of the tool `web.fetch`, in the section `web`.

use bub::{AnySetting, Section, SettingKey};

/// Private hosts that `web.fetch` may reach.
pub static WEB_ALLOW_PRIVATE: SettingKey<Vec<String>> = SettingKey::new(
    "web.allow_private",
    "",
    "Private hosts (`wiki.corp`, `*.corp`) and networks (`10.1.0.0/16`) that `web.fetch` may reach.",
);

/// Whether `web.fetch` uses the proxies of the environment. bub does not check the addresses to which a proxy connects.
pub static WEB_PROXY: SettingKey<bool> = SettingKey::new(
    "web.proxy",
    true,
    "Use the proxies of the environment (such as `HTTPS_PROXY`) for `web.fetch`.",
);

static WEB: &[&dyn AnySetting] = &[&WEB_ALLOW_PRIVATE, &WEB_PROXY];

/// Returns the section `web`, for `App::settings`.
pub fn section() -> Section {
    Section::new("web", WEB)
}
