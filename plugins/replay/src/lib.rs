//! Replay: recorded tapes as models and as tests.
//!
//! * [`ReplayPlugin`]: the provider `replay`, which answers model calls from a tape: `model: replay:TAPE`.
//! * [`Recording`]: the model calls and turns of a tape. [`RecordedModel`] answers with them.
//! * [`commands`]: `bub replay`, `bub eval` and `bub demo`.
//! * [`settings`]: the settings of the provider.
//!
//! A test of a plugin uses a tape as its model:
//!
//! ```no_run
//! # async fn test() -> bub::Result<()> {
//! use bub::testing;
//! use bub_replay::ReplayPlugin;
//!
//! let turn = testing::turn("What is in notes.md?")
//!     .plugin(ReplayPlugin::NAME, ReplayPlugin::new)
//!     .model("replay:tests/notes.jsonl")
//!     .run()
//!     .await?;
//! turn.assert_reply("It has two lines.");
//! # Ok(())
//! # }
//! ```

mod command;
mod demo;
mod difference;
mod eval;
mod files;
mod interruption;
mod plugin;
mod program;
mod provider;
mod recording;
mod report;
mod session;
pub mod settings;
mod store;
mod surroundings;

pub use plugin::{ActiveReplay, ReplayPlugin};
pub use provider::RecordedModel;
pub use recording::{RecordedCall, RecordedTurn, Recording};
pub use session::{ReplayOptions, ReplaySession, ToolSource};
pub use surroundings::Surroundings;

/// Returns the commands `bub replay`, `bub eval` and `bub demo`. `active` is the replay of the plugin
/// ([`ReplayPlugin::with_replay`]).
pub fn commands(active: &ActiveReplay) -> Vec<bub::AppCommand> {
    vec![command::command(active), eval::command(), demo::command()]
}
