use bub_kernel::{Prompt, hooks};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_promt(&self) -> Option<Prompt> {
        None
    }
}

fn main() {}
