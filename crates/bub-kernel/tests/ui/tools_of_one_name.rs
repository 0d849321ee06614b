use bub_kernel::tools;

struct Github;

#[tools(crate = bub_kernel)]
impl Github {
    /// Reads an issue.
    #[tool(name = "github.issue")]
    async fn issue(&self, #[default(1)] number: u64) -> u64 {
        number
    }

    /// Reads an issue with its comments.
    #[tool(name = "github_issue")]
    async fn issue_with_comments(&self, number: u64) -> u64 {
        number
    }
}

fn main() {}
