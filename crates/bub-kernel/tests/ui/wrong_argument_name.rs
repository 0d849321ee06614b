use bub_kernel::{Envelope, Prompt, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(&self, msg: &Envelope) -> Option<Prompt> {
        None
    }
}

fn main() {}
