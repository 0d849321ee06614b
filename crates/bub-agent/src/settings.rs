//! The settings of the agent: its loop, tools, skills, policy and usage.

use std::time::Duration;

use bub_settings::{AnySetting, Section, SettingKey};
use serde_json::{Map, Value};

/// How many steps a turn may take. The original has no limit; 100 stops a runaway loop.
pub static MAX_STEPS: SettingKey<Option<u64>> = SettingKey::new(
    "max_steps",
    Some(100),
    "Most steps of one turn; null for no limit.",
)
.at_least(1);

/// How long an answer may be.
pub static MAX_TOKENS: SettingKey<u64> =
    SettingKey::new("max_tokens", 16_384, "Most tokens of one answer.").at_least(1);

/// Options of each model call. Trusted, because some providers take addresses and headers here.
pub static COMPLETION_ARGS: SettingKey<Map<String, Value>> = SettingKey::new(
    "completion_args",
    (),
    "Options for every model call, the weakest of all sources.",
)
.trusted();

/// From which size a tool's output is put aside.
pub static SPILL_THRESHOLD: SettingKey<u64> = SettingKey::new(
    "spill.threshold",
    4096,
    "Size in characters above which tool output is put aside; 0 never.",
);

/// What people may do. Trusted: it is policy.
pub static POLICY_RULES: SettingKey<Vec<Map<String, Value>>> = SettingKey::new(
    "policy.rules",
    (),
    "Rules for tool calls, the first that fits decides: a list of maps with roles, channels, tools, arguments, action, reason.",
)
.trusted();

/// How long an answer is waited for. Trusted: it is policy.
pub static POLICY_APPROVAL_TIMEOUT: SettingKey<Duration> = SettingKey::new(
    "policy.approval_timeout_seconds",
    Duration::from_mins(5),
    "Time in seconds after which a tool call that nobody approved is denied.",
)
.trusted();

/// Whether files outside the workspace are out of reach. Trusted: it is policy.
pub static FS_CONFINE: SettingKey<bool> = SettingKey::new(
    "fs.confine",
    false,
    "Keep the fs tools inside the workspace, for owners too.",
)
.trusted();

/// Which variables a skill gets once it is loaded. Trusted: it is policy.
pub static SKILLS_ENV: SettingKey<Map<String, Value>> = SettingKey::new(
    "skills.env",
    (),
    "Variables a skill may ask for: a map of skill to names, `project:name` for a skill of the workspace.",
)
.trusted();

/// Who in the own network may be read. Trusted: it is policy.
pub static WEB_ALLOW_PRIVATE: SettingKey<Vec<String>> = SettingKey::new(
    "web.allow_private",
    "",
    "Hosts (`wiki.corp`, `*.corp`) and networks (`10.1.0.0/16`) that `web.fetch` may reach although they are private.",
)
.trusted();

/// Whether proxies are used. Trusted: a proxy looks names up itself.
pub static WEB_PROXY: SettingKey<bool> = SettingKey::new(
    "web.proxy",
    true,
    "Let `web.fetch` use the proxies of the environment (`HTTPS_PROXY` and the like).",
)
.trusted();

/// How many tokens a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_TOKENS: SettingKey<Option<u64>> = SettingKey::new(
    "usage.daily_tokens",
    None,
    "Most tokens of one day, input and output; null for no limit.",
)
.trusted();

/// How much money a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_COST: SettingKey<Option<f64>> = SettingKey::new(
    "usage.daily_cost",
    None,
    "Most US dollars of one day; null for no limit.",
)
.trusted();

static ROOT: &[&dyn AnySetting] = &[&MAX_STEPS, &MAX_TOKENS, &COMPLETION_ARGS];
static SPILL: &[&dyn AnySetting] = &[&SPILL_THRESHOLD];
static POLICY: &[&dyn AnySetting] = &[&POLICY_RULES, &POLICY_APPROVAL_TIMEOUT];
static FS: &[&dyn AnySetting] = &[&FS_CONFINE];
static SKILLS: &[&dyn AnySetting] = &[&SKILLS_ENV];
static WEB: &[&dyn AnySetting] = &[&WEB_ALLOW_PRIVATE, &WEB_PROXY];
static USAGE: &[&dyn AnySetting] = &[&USAGE_DAILY_TOKENS, &USAGE_DAILY_COST];

/// The sections with these settings, for `Loader::sections`. The one without a name adds to the root.
pub fn sections() -> [Section; 7] {
    [
        Section::new("", ROOT),
        Section::new("spill", SPILL),
        Section::new("policy", POLICY),
        Section::new("fs", FS),
        Section::new("skills", SKILLS),
        Section::new("web", WEB),
        Section::new("usage", USAGE),
    ]
}
