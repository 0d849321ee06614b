//! Which delivery of which message a turn is for, and that it is over.

/// The slot by which whoever delivers messages durably names the one a turn is for.
///
/// A message that is delivered again, because the process died in its turn, is not recorded again: the turn goes on
/// from what its tape holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The same for every delivery of the message.
    pub inbound_id: String,
    /// Counted from 1.
    pub attempt: u32,
}

/// The slot on the notice that a turn failed: with it the message is finished, and is not tried again.
#[derive(Clone, Copy, Debug)]
pub struct LastWord;
