use bub_kernel::hooks;

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    #[observe_only]
    fn after_tool_call(&self) {}
}

fn main() {}
