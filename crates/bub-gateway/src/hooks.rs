//! The hooks by which the gateway follows a turn.

use bub_kernel::{Envelope, hooks};

use crate::current::Current;

/// Plugin that a framework needs if a [`Gateway`](crate::Gateway) runs its turns.
#[derive(Debug, Default)]
pub struct GatewayHooks;

#[hooks(crate = bub_kernel)]
impl GatewayHooks {
    /// Adds nothing. From here on, the messages of the turn are its plain replies.
    fn render_outbound(&self) -> Vec<Envelope> {
        if let Some(turn) = Current::get() {
            turn.note_rendered();
        }
        Vec::new()
    }
}
