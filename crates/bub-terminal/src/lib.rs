//! Text on a terminal, and the chat that is made of it.
//!
//! * [`harmless`](mod@harmless): text of somebody else that cannot move the cursor, hide or forge anything.
//! * [`columns`]: how wide a text is.
//! * [`Line`], [`Span`], [`Style`], [`Ink`]: styled text; escape sequences appear when it is written, not before.
//! * [`markdown`]: an answer that is laid out while it streams.
//! * [`screen`]: finished lines that scroll away, and a live area below them.
//! * [`keys`], [`editor`], [`history`]: what somebody types.
//! * [`view`]: a turn as lines.
//! * [`channel`], [`Host`]: how the chat hears of turns, and what it asks of the program around it.
//! * [`chat`], [`plain`]: the chat at a terminal, and without one.
//! * [`tty`]: raw mode, and the way back.

pub mod channel;
pub mod chat;
pub mod editor;
pub mod harmless;
pub mod history;
mod host;
pub mod keys;
mod line;
pub mod markdown;
pub mod plain;
pub mod screen;
pub mod tty;
pub mod view;
mod width;

pub use channel::{Happening, LineOutcome};
pub use host::Host;
pub use line::{Ink, Line, Span, Style};
pub use width::{columns, fit};
