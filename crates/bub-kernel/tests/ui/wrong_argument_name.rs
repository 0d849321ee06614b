use bub_kernel::{Envelope, Prompt, hooks};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(&self, msg: &Envelope) -> Option<Prompt> {
        drop(msg.clone());
        None
    }
}

fn main() {}
