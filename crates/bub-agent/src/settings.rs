//! The settings of the agent: its loop, tools, skills, policy and usage.

use std::time::Duration;

use bub_sandbox::SandboxProfile;
use bub_settings::{AnySetting, FromSettings, Section, SettingChoice, SettingKey, Settings};
use serde_json::{Map, Value};

use crate::policy::PolicyAction;

/// Settings at the top level of the config file.
#[derive(Settings)]
#[settings(section = "", crate = bub_settings)]
pub struct AgentSettings {
    /// Maximum steps per turn; null for no limit.
    ///
    /// The default stops a model that requests tools forever.
    #[setting(default = Some(100), at_least = 1)]
    pub max_steps: Option<u64>,
    /// Maximum tokens per answer.
    #[setting(default = 16_384, at_least = 1)]
    pub max_tokens: u64,
    /// Model that transcribes audio, such as `openai:whisper-1`; without it, models get the recording.
    pub transcribe: Option<String>,
    /// Extra options for the body of every model call; options that bub sets have priority.
    pub completion_args: Map<String, Value>,
}

/// Settings in the section `spill`.
#[derive(Settings)]
#[settings(section = "spill", crate = bub_settings)]
pub struct SpillSettings {
    /// Size in tokens (about 4 characters each) above which tool output is stored beside the tape and the model sees a
    /// preview; 0 disables this.
    #[setting(default = 4096)]
    pub threshold: u64,
}

/// Settings in the section `usage`.
#[derive(Settings)]
#[settings(section = "usage", crate = bub_settings)]
pub struct UsageSettings {
    /// Maximum tokens per day, input and output; null for no limit.
    pub daily_tokens: Option<u64>,
    /// Maximum cost per day in US dollars; null for no limit.
    pub daily_cost: Option<f64>,
    /// Maximum cost of the model calls of one process in US dollars; the option `--max-price` of `bub run` sets it.
    pub process_cost: Option<f64>,
}

/// The rules of the tool policy.
pub static POLICY_RULES: SettingKey<Vec<Map<String, Value>>> = SettingKey::new(
    "policy.rules",
    (),
    "Rules for tool calls; the first match decides. A list of maps with roles, channels, tools, arguments, action, approvers, reason.",
);

/// Tools that owners may use without a question.
pub static POLICY_ALLOW: SettingKey<Vec<String>> = SettingKey::new(
    "policy.allow",
    "",
    "Tools that owners may use without a question, as names or patterns such as `fs.*`. Checked last.",
);

/// Tools that are asked about.
pub static POLICY_ASK: SettingKey<Vec<String>> = SettingKey::new(
    "policy.ask",
    "",
    "Tools that are asked about, as names or patterns. Checked after `policy.rules`.",
);

/// Tools that are denied.
pub static POLICY_DENY: SettingKey<Vec<String>> = SettingKey::new(
    "policy.deny",
    "",
    "Tools that are denied for everyone, as names or patterns. Checked first.",
);

/// Tools that are denied in one run.
pub static POLICY_RUN_DENY: SettingKey<Vec<String>> = SettingKey::new(
    "policy.run_deny",
    "",
    "Like `policy.deny`, for one run; the option `--deny` of `bub run` sets it.",
);

/// Tools that are asked about in one run.
pub static POLICY_RUN_ASK: SettingKey<Vec<String>> = SettingKey::new(
    "policy.run_ask",
    "",
    "Tools to ask about in one run, before `policy.rules`; the option `--ask` of `bub run` sets it.",
);

/// Tools that owners may use without a question in one run.
pub static POLICY_RUN_ALLOW: SettingKey<Vec<String>> = SettingKey::new(
    "policy.run_allow",
    "",
    "Tools to allow in one run, before `policy.rules`; the option `--allow` of `bub run` sets it.",
);

/// What happens to calls that the least role in the conversation may not make.
pub static POLICY_MIXED_COMPANY: SettingKey<PolicyAction> = SettingKey::new(
    "policy.mixed_company",
    PolicyAction::Deny,
    "If the conversation contains text of others with a lower role: allow, ask about or deny calls above that role.",
);

/// What happens to calls that members may not make, if the conversation contains untrusted text.
pub static POLICY_UNTRUSTED_CONTENT: SettingKey<PolicyAction> = SettingKey::new(
    "policy.untrusted_content",
    PolicyAction::Ask,
    "If the conversation contains web pages, webhooks or instructions of an untrusted workspace: allow, ask about (once per turn) or deny calls that members may not make.",
);

/// How long an approval request waits for an answer.
pub static POLICY_APPROVAL_TIMEOUT: SettingKey<Duration> = SettingKey::new(
    "policy.approval_timeout_seconds",
    Duration::from_mins(5),
    "Seconds to wait for an approval before the tool call is denied.",
);

/// Whether owners, too, can use only files in the workspace with the fs tools.
pub static FS_CONFINE: SettingKey<bool> = SettingKey::new(
    "fs.confine",
    false,
    "Restrict fs.read, fs.write and fs.edit to the workspace for owners, too; other users are always restricted.",
);

/// Environment variables granted to skills.
pub static SKILLS_ENV: SettingKey<Map<String, Value>> = SettingKey::new(
    "skills.env",
    (),
    "Environment variables granted to skills: a map from skill name to variable names; write `project:NAME` for a workspace skill.",
);

/// Settings in the section `sandbox`.
#[derive(Settings)]
#[settings(section = "sandbox", crate = bub_settings)]
pub struct SandboxSettings {
    /// Sandbox for the agent's commands: `read-only`, `workspace` (writes only there) or `off`. Commands of users who are
    /// not owners always run in one.
    #[setting(default = SandboxMode::Workspace)]
    pub profile: SandboxMode,
    /// Network for sandboxed commands: `auto` (only for the owner at the terminal), `on` or `off`.
    #[setting(default = SandboxNetwork::Auto)]
    pub network: SandboxNetwork,
    /// Caches in the home directory that sandboxed commands can write to: cargo, go, npm, pip, uv.
    pub grants: Vec<String>,
    /// Absolute paths outside the workspace that sandboxed commands can read.
    pub readable: Vec<String>,
    /// Absolute paths outside the workspace that sandboxed commands can write to.
    pub writable: Vec<String>,
    /// Maximum processes and threads while a sandboxed command runs; null for no limit. Before Linux 6.14, it does not apply to root.
    #[setting(default = Some(4096), at_least = 1)]
    pub max_processes: Option<u64>,
    /// Maximum megabytes of memory for each process of a sandboxed command; null for no limit.
    #[setting(default = Some(16_384), at_least = 16)]
    pub max_memory_mb: Option<u64>,
    /// Maximum megabytes of a file that a sandboxed command writes; null for no limit.
    #[setting(default = Some(16_384), at_least = 1)]
    pub max_file_mb: Option<u64>,
}

/// The value of `sandbox.profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SettingChoice)]
#[settings(crate = bub_settings)]
pub enum SandboxMode {
    /// Commands write only temporary files.
    ReadOnly,
    /// Commands write only in the workspace.
    Workspace,
    /// Commands of owners are not confined.
    Off,
}

impl From<SandboxMode> for SandboxProfile {
    fn from(mode: SandboxMode) -> Self {
        match mode {
            SandboxMode::ReadOnly => Self::ReadOnly,
            SandboxMode::Workspace => Self::Workspace,
            SandboxMode::Off => Self::Off,
        }
    }
}

/// The value of `sandbox.network`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SettingChoice)]
#[settings(crate = bub_settings)]
pub enum SandboxNetwork {
    /// Only commands of the owner at the terminal have network.
    Auto,
    /// All commands have network.
    On,
    /// No command has network.
    Off,
}

static POLICY: &[&dyn AnySetting] = &[
    &POLICY_DENY,
    &POLICY_RUN_DENY,
    &POLICY_RUN_ASK,
    &POLICY_RUN_ALLOW,
    &POLICY_RULES,
    &POLICY_ASK,
    &POLICY_ALLOW,
    &POLICY_APPROVAL_TIMEOUT,
    &POLICY_MIXED_COMPANY,
    &POLICY_UNTRUSTED_CONTENT,
];
static FS: &[&dyn AnySetting] = &[&FS_CONFINE];
static SKILLS: &[&dyn AnySetting] = &[&SKILLS_ENV];

/// Returns the sections of the agent's settings, for `Loader::sections`. The section with an empty name is the root.
pub fn sections() -> [Section; 7] {
    [
        AgentSettings::section(),
        SpillSettings::section(),
        Section::new("policy", POLICY),
        Section::new("fs", FS),
        Section::new("skills", SKILLS),
        SandboxSettings::section(),
        UsageSettings::section(),
    ]
}
