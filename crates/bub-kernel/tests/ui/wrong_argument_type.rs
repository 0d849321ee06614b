use bub_kernel::{Envelope, Prompt, Result, StatePatch, hooks, hooks::{Next, point}};

struct Echo;

#[hooks(crate = bub_kernel)]
impl Echo {
    fn build_prompt(&self, message: &str) -> Option<Prompt> {
        Some(Prompt::from(message))
    }

    fn on_error(&self, message: &Envelope) {
        drop(message.clone());
    }

    async fn resolve_session(&self, next: Next<'_, point::BuildPrompt>) -> Result<Option<String>> {
        Ok(next.call().await?.map(|prompt| prompt.text()))
    }

    fn load_state(&self, session_id: String) -> StatePatch {
        StatePatch::new().with("id", session_id)
    }
}

fn main() {}
