use bub_kernel::tools;

struct Shouter;

#[tools(crate = bub_kernel)]
impl Shouter {
    async fn shout(
        &self,
        /// The text.
        text: String,
    ) -> String {
        text.to_uppercase()
    }
}

fn main() {}
