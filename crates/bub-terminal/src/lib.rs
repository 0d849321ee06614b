//! Text on a terminal, and the chat that is made of it.
//!
//! * [`sanitize`](mod@sanitize): text of somebody else that cannot move the cursor, hide or forge anything.
//! * [`columns`]: how wide a text is.
//! * [`Line`], [`Span`], [`Style`], [`ColorMode`]: styled text; escape sequences appear when it is written, not before.
//! * [`markdown`]: an answer that is laid out while it streams.
//! * [`screen`]: finished lines that scroll away, and a live area below them.
//! * [`keys`], [`editor`], [`history`]: what somebody types.
//! * [`turn_view`]: a turn as lines.
//! * [`channel`], [`ChatHost`]: how the chat hears of turns, and what it asks of the program around it.
//! * [`chat`], [`plain_chat`]: the chat at a terminal, and without one.
//! * [`tty`]: raw mode, and the way back.

pub mod channel;
pub mod chat;
pub mod editor;
pub mod history;
mod host;
pub mod keys;
mod line;
pub mod markdown;
pub mod plain_chat;
pub mod sanitize;
pub mod screen;
pub mod tty;
pub mod turn_view;
mod width;

pub use channel::{ChatEvent, LineOutcome};
pub use host::ChatHost;
pub use line::{ColorMode, Line, Span, Style};
pub use width::{columns, fit};
