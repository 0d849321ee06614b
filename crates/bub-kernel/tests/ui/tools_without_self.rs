use bub_kernel::tools;

struct Github;

#[tools(crate = bub_kernel)]
impl Github {
    const LIMIT: u64 = 20;

    /// Creates a client.
    fn connect(#[default("github.com")] host: String) -> Self {
        let _ = host;
        Self
    }

    /// Reads an issue.
    #[tool(crate = bub_kernel)]
    async fn issue(&self, #[default(Self::LIMIT)] number: u64) -> u64 {
        number
    }
}

fn main() {}
