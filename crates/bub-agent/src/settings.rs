//! The settings of the agent: its loop, tools, skills, policy and usage.

use std::time::Duration;

use bub_settings::{Declared, Key, Section};
use serde_json::{Map, Value};

/// How many steps a turn may take. The original has no limit; 100 stops a runaway loop.
pub static MAX_STEPS: Key<Option<u64>> = Key::new(
    "max_steps",
    Some(100),
    "Most steps of one turn; null for no limit.",
)
.at_least(1);

/// How long an answer may be.
pub static MAX_TOKENS: Key<u64> =
    Key::new("max_tokens", 16_384, "Most tokens of one answer.").at_least(1);

/// Options of each model call. Trusted, because some providers take addresses and headers here.
pub static COMPLETION_ARGS: Key<Map<String, Value>> = Key::new(
    "completion_args",
    (),
    "Options for every model call, the weakest of all sources.",
)
.trusted();

/// From which size a tool's output is put aside.
pub static SPILL_THRESHOLD: Key<u64> = Key::new(
    "spill.threshold",
    4096,
    "Size in characters above which tool output is put aside; 0 never.",
);

/// What people may do. Trusted: it is policy.
pub static POLICY_RULES: Key<Vec<Map<String, Value>>> = Key::new(
    "policy.rules",
    (),
    "Rules for tool calls, the first that fits decides: a list of maps with roles, channels, tools, arguments, action, reason.",
)
.trusted();

/// How long an answer is waited for. Trusted: it is policy.
pub static POLICY_APPROVAL_TIMEOUT: Key<Duration> = Key::new(
    "policy.approval_timeout_seconds",
    Duration::from_mins(5),
    "Time in seconds after which a tool call that nobody approved is denied.",
)
.trusted();

/// Whether files outside the workspace are out of reach. Trusted: it is policy.
pub static FS_CONFINE: Key<bool> = Key::new(
    "fs.confine",
    false,
    "Keep the fs tools inside the workspace, for owners too.",
)
.trusted();

/// Which variables a skill gets once it is loaded. Trusted: it is policy.
pub static SKILLS_ENV: Key<Map<String, Value>> = Key::new(
    "skills.env",
    (),
    "Variables a skill may ask for: a map of skill to names, `project:name` for a skill of the workspace.",
)
.trusted();

/// Who in the own network may be read. Trusted: it is policy.
pub static WEB_ALLOW_PRIVATE: Key<Vec<String>> = Key::new(
    "web.allow_private",
    "",
    "Hosts (`wiki.corp`, `*.corp`) and networks (`10.1.0.0/16`) that `web.fetch` may reach although they are private.",
)
.trusted();

/// Whether proxies are used. Trusted: a proxy looks names up itself.
pub static WEB_PROXY: Key<bool> = Key::new(
    "web.proxy",
    true,
    "Let `web.fetch` use the proxies of the environment (`HTTPS_PROXY` and the like).",
)
.trusted();

/// How many tokens a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_TOKENS: Key<Option<u64>> = Key::new(
    "usage.daily_tokens",
    None,
    "Most tokens of one day, input and output; null for no limit.",
)
.trusted();

/// How much money a day. Trusted: a workspace must not lift it.
pub static USAGE_DAILY_COST: Key<Option<f64>> = Key::new(
    "usage.daily_cost",
    None,
    "Most US dollars of one day; null for no limit.",
)
.trusted();

static ROOT: &[&dyn Declared] = &[&MAX_STEPS, &MAX_TOKENS, &COMPLETION_ARGS];
static SPILL: &[&dyn Declared] = &[&SPILL_THRESHOLD];
static POLICY: &[&dyn Declared] = &[&POLICY_RULES, &POLICY_APPROVAL_TIMEOUT];
static FS: &[&dyn Declared] = &[&FS_CONFINE];
static SKILLS: &[&dyn Declared] = &[&SKILLS_ENV];
static WEB: &[&dyn Declared] = &[&WEB_ALLOW_PRIVATE, &WEB_PROXY];
static USAGE: &[&dyn Declared] = &[&USAGE_DAILY_TOKENS, &USAGE_DAILY_COST];

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
