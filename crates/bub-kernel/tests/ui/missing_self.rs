use bub_kernel::{Envelope, Prompt, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(message: &Envelope) -> Option<Prompt> {
        None
    }

    fn load_state(&mut self) {}

    fn helper() {}
}

fn main() {}
