use bub_kernel::hooks;

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(&self) -> Option<u32> {
        None
    }

    async fn run_model(&self) -> Result<u32, std::fmt::Error> {
        Ok(1)
    }

    fn load_state(&self) {}
}

fn main() {}
