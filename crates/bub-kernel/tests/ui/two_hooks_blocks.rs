//! A type has one block of hooks.
use bub_kernel::{Envelope, Prompt, hooks};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(&self, message: &Envelope) -> Option<Prompt> {
        Some(Prompt::from(message.content().into_owned()))
    }
}

#[hooks(crate = bub_kernel)]
impl Echo {
    fn system_prompt(&self) -> Option<String> {
        None
    }
}

fn main() {}
