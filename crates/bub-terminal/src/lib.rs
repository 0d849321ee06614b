//! Text on a terminal.
//!
//! * [`harmless`](mod@harmless): text of somebody else that cannot move the cursor, hide or forge anything.
//! * [`columns`]: how wide a text is.
//! * [`Line`], [`Span`], [`Style`], [`Ink`]: styled text; escape sequences appear when it is written, not before.
//! * [`markdown`]: an answer that is laid out while it streams.

pub mod harmless;
mod line;
pub mod markdown;
mod width;

pub use line::{Ink, Line, Span, Style};
pub use width::{columns, fit};
