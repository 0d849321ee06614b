use bub_kernel::{Prompt, hooks};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    const NAME: &str = "echo";

    fn build_prompt(&self) -> Option<Prompt> {
        None
    }
}

fn main() {}
