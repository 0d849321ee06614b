//! A type is a plugin only with `#[hooks]` or `#[tools(plugin)]`.
use bub_kernel::{Framework, tools};

struct Clock;

#[tools(crate = bub_kernel)]
impl Clock {
    /// Return the time.
    async fn time(&self) -> String {
        "noon".to_owned()
    }
}

struct Empty;

fn main() {
    let _ = Framework::builder().plugin("clock", Clock);
    let _ = Framework::builder().plugin_with("empty", |_| Empty);
}
