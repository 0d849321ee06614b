//! A turn moves between threads, and `Rc` cannot.
use std::rc::Rc;

use bub_kernel::{hooks, tool};

struct Notes;

#[hooks(crate = bub_kernel)]
impl Notes {
    async fn build_prompt(&self) -> String {
        let text = Rc::new("hello");
        std::future::ready(()).await;
        text.to_string()
    }
}

/// Say hello.
#[tool(crate = bub_kernel)]
async fn hello() -> String {
    let text = Rc::new("hello");
    std::future::ready(()).await;
    text.to_string()
}

fn main() {}
