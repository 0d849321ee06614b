//! Text output for terminals, and the terminal chat built on it.
//!
//! * [`sanitize`](mod@sanitize): makes untrusted text safe to print. It cannot move the cursor, or hide or forge text.
//! * [`columns`]: the display width of a text.
//! * [`Line`], [`Span`], [`Style`], [`ColorMode`]: styled text. Escape sequences are added only when it is written.
//! * [`markdown`]: lays out Markdown while it streams.
//! * [`screen`]: finished lines that scroll away, and a live area below them.
//! * [`keys`], [`editor`], [`history`]: keyboard input, the line editor, and its history.
//! * [`turn_view`]: renders a turn as lines.
//! * [`channel`], [`ChatHost`]: the `cli` channel, and the interface between a chat and the program that runs it.
//! * [`chat`], [`plain_chat`]: the interactive chat, and the chat for pipes, dumb terminals and screen readers.
//! * [`tty`]: raw mode and terminal restoration.

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
pub use width::{columns, split_at_width};
