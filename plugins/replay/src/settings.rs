//! The settings in the section `replay`.

use bub::settings::{SettingChoice, Settings};

/// Settings of the provider `replay`, in the section `replay`.
#[derive(Clone, Copy, Debug, Settings)]
#[settings(section = "replay")]
pub struct ReplaySettings {
    /// What happens if a request differs from the recorded one. `strict`: the call fails; `lenient`: a warning.
    #[setting(default = Divergence::Strict)]
    pub divergence: Divergence,
    /// Characters per second at which a recorded answer is streamed; 0 streams it at once.
    #[setting(default = 0)]
    pub pace: u64,
    /// Replay a session instead of running turns as usual; `bub replay` sets it.
    #[setting(default = false)]
    pub session: bool,
}

/// What happens if a request differs from the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SettingChoice)]
pub enum Divergence {
    /// The call fails with the first difference.
    Strict,
    /// The recorded answer is used, and the log has a warning with the first difference.
    Lenient,
}
