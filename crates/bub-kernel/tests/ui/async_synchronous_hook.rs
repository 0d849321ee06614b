//! `system_prompt` is called without `await`.
use bub_kernel::hooks;

struct Weather;

#[hooks(crate = bub_kernel)]
impl Weather {
    async fn system_prompt(&self) -> String {
        "It is sunny.".to_owned()
    }
}

fn main() {}
