use bub_kernel::{Envelope, Prompt, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    async fn render_outbound(&self, next: Next<'_, point::RenderOutbound>) -> Vec<Envelope> {
        next.call().await;
        Vec::new()
    }
}

fn main() {}
