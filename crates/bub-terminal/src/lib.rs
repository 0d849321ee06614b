//! Text output for terminals, and the terminal chat built on it.
//!
//! * [`sanitize`](mod@sanitize): makes untrusted text safe to print. Sanitized text cannot move the cursor, and cannot
//!   hide or forge text.
//! * [`columns`]: the display width of a text.
//! * [`Line`], [`Span`], [`Style`], [`ColorMode`]: styled text. Escape sequences are added when the text is written.
//! * [`markdown`]: lays out Markdown while it streams.
//! * [`screen`]: prints finished lines, which scroll away, and redraws a live area below them.
//! * [`keys`], [`editor`], [`history`]: keyboard input, the line editor, and its history.
//! * [`turn_view`]: renders a turn as lines.
//! * [`channel`], [`ChatHost`]: the `cli` channel, and the interface between a chat and the program that runs it.
//! * [`chat`], [`plain_chat`]: the interactive chat, and the chat for pipes, dumb terminals and screen readers.
//! * [`turn_printer`]: prints one turn, for `bub run`.
//! * [`tty`]: raw mode and terminal restoration.

mod approval_view;
pub mod channel;
pub mod chat;
pub mod editor;
mod highlight;
pub mod history;
mod host;
pub mod keys;
mod line;
pub mod markdown;
pub mod plain_chat;
mod replaced_file;
pub mod sanitize;
pub mod screen;
mod spinner;
mod stdout_writer;
pub mod tty;
pub mod turn_printer;
pub mod turn_view;
mod width;

pub use approval_view::{answer_notice, approval_lines, parse_answer};
pub use channel::{ChatEvent, LineOutcome};
pub use host::ChatHost;
pub use line::{ColorMode, Line, Span, Style};
pub use width::{columns, split_at_width};
