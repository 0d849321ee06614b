//! Test program whose plugin fails once in one hook, as the file `fault` in the workspace specifies.
//!
//! The file holds a stage and a failure, such as `build_prompt panic`. It is renamed to `reached` before the hook fails.
#![allow(clippy::panic, reason = "that is one of the failures")]

use std::{fs, io::Write as _, path::Path, process::ExitCode, time::Duration};

use bub::{StatePatch, prelude::*};

struct FailingStage;

impl FailingStage {
    async fn enter(&self, stage: &str) -> Result<()> {
        let fault = fs::read_to_string("fault").unwrap_or_default();
        let Some(failure) = fault
            .strip_prefix(stage)
            .and_then(|rest| rest.strip_prefix(' '))
        else {
            return Ok(());
        };
        fs::rename("fault", "reached")?;
        match failure {
            "error" => Err(Error::unknown("failed on purpose")),
            "config" => Err(Error::config("failed on purpose")),
            "panic" => panic!("failed on purpose"),
            _ => hang().await,
        }
    }
}

/// Waits until the test lets the hook continue.
async fn hang() -> Result<()> {
    while !Path::new("release").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[hooks]
impl FailingStage {
    async fn resolve_session(&self) -> Result<Option<String>> {
        self.enter("resolve_session").await?;
        Ok(None)
    }

    async fn load_state(&self) -> Result<StatePatch> {
        self.enter("load_state").await?;
        Ok(StatePatch::new())
    }

    async fn build_prompt(&self) -> Result<Option<Prompt>> {
        self.enter("build_prompt").await?;
        Ok(None)
    }

    async fn run_model(&self) -> Result<Option<String>> {
        self.enter("run_model").await?;
        Ok(None)
    }

    async fn save_state(&self) -> Result<()> {
        let mut saves = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open("saves")?;
        writeln!(saves, "saved")?;
        self.enter("save_state").await
    }

    async fn render_outbound(&self) -> Result<Option<Vec<Envelope>>> {
        self.enter("render_outbound").await?;
        Ok(None)
    }

    async fn dispatch_outbound(&self) -> Result<bool> {
        self.enter("dispatch_outbound").await?;
        Ok(false)
    }
}

fn main() -> ExitCode {
    bub_cli::app().plugin("failing_stage", FailingStage).main()
}
