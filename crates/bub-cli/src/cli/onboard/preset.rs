//! Explains the sandbox and approvals, and offers a preset of their settings.

use bub_kernel::Result;
use bub_settings::SettingSource;
use bub_terminal::tty;

use super::{
    super::{
        listing::wrap_text,
        picker::{self, Picker, PickerItem},
        prompt,
    },
    Onboarding,
};

const EXPLANATION: &str = "
Commands of the agent run in a sandbox: they write only in the workspace and
in a private /tmp, and cannot read your keys. Before a tool call that the
policy asks about, bub shows the call and waits for your approval.
To try the sandbox, run `bub sandbox -- CMD`. `bub policy list` shows the rules,
and `bub config set` changes them.
";

/// A preset: its name, what it means, and the settings that differ from the defaults.
type Preset = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const PRESETS: [Preset; 3] = [
    (
        "careful",
        "ask before commands, changes of files and web requests",
        &[
            ("sandbox.network", "off"),
            ("policy.ask", "bash,fs.write,fs.edit,web.fetch"),
        ],
    ),
    (
        "standard",
        "commands run in the sandbox without a question",
        &[],
    ),
    (
        "free",
        "no sandbox and no questions: the agent can do what you can do",
        &[("sandbox.profile", "off")],
    ),
];

/// Settings of the sandbox and the policy. If one of them is set, the user has decided.
const KEYS: [&str; 6] = [
    "sandbox.profile",
    "sandbox.network",
    "policy.rules",
    "policy.allow",
    "policy.ask",
    "policy.deny",
];

/// The preset that Enter takes.
const DEFAULT_PRESET: &str = "standard";

/// Offers a preset, unless the user has configured the sandbox or the policy.
pub(super) async fn choose_preset(onboarding: &mut Onboarding<'_>) -> Result<()> {
    let settings = &onboarding.settings;
    let is_default = |origin: SettingSource| origin == SettingSource::Default;
    if !KEYS
        .iter()
        .all(|key| settings.origin(key).is_none_or(is_default))
    {
        return Ok(());
    }
    for line in wrap_text(EXPLANATION, 0, Some(tty::size().columns)) {
        notice!("{line}");
    }
    notice!("");
    let name = if picker::can_pick(settings) {
        let items = PRESETS.iter().map(|(name, about, _)| PickerItem {
            name: (*name).to_owned(),
            about: (*about).to_owned(),
            aliases: Vec::new(),
        });
        let picker = Picker {
            question: "preset".to_owned(),
            items: items.collect(),
            default: Some(DEFAULT_PRESET.to_owned()),
            custom: None,
            suggest: |_, _| None,
        };
        picker::pick(picker, settings).await?
    } else {
        ask_preset().await?
    };
    let mut presets = PRESETS.iter();
    let chosen = presets.find(|(preset, ..)| *preset == name);
    for (key, value) in chosen.map_or(&[][..], |(.., values)| values) {
        onboarding.set_value(key, value)?;
    }
    Ok(())
}

async fn ask_preset() -> Result<String> {
    for (name, about, _) in PRESETS {
        notice!("  {name:8}  {about}");
    }
    loop {
        let name = prompt::prompt_line("preset", Some(DEFAULT_PRESET)).await?;
        let name = name.to_ascii_lowercase();
        if PRESETS.iter().any(|(preset, ..)| *preset == name) {
            return Ok(name);
        }
        notice!("unknown preset `{name}`; available presets: careful, standard, free");
    }
}
