//! A hook that waits is `async`.
use bub_kernel::{Prompt, Result, hooks, hooks::Next};

struct Polite;

#[hooks(crate = bub_kernel)]
impl Polite {
    fn build_prompt(&self, next: Next<'_>) -> Result<Option<Prompt>> {
        next.call().await
    }
}

fn main() {}
