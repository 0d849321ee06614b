use bub_kernel::{Envelope, Prompt, hooks};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(message: &Envelope) -> Option<Prompt> {
        drop(message.clone());
        None
    }

    fn load_state(&mut self) {}

    fn helper() {}
}

fn main() {}
