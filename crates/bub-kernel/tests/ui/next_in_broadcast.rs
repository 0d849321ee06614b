use bub_kernel::{Envelope, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    async fn render_outbound(&self, next: Next<'_, point::RenderOutbound>) -> Vec<Envelope> {
        drop(next);
        Vec::new()
    }
}

fn main() {}
