use bub_kernel::{ModelStream, Result, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn run_model_stream(&self, next: Next<'_, point::RunModelStream>) -> Result<Option<ModelStream>> {
        next.call_sync()
    }
}

fn main() {}
