//! The options of `#[hooks]`.
use bub_kernel::hooks;

struct Empty;

#[hooks(tool, crate = bub_kernel)]
impl Empty {}

fn main() {}
