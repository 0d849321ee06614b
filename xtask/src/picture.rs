//! `cargo xtask picture`: creates the picture of a session in the README from a real run.

use std::process::{Command, Stdio};

use crate::{TaskResult, cargo_build, repository_root};

const PATH: &str = "docs/images/session.svg";

pub(crate) fn run() -> TaskResult<()> {
    let built = cargo_build(&[
        "build",
        "--locked",
        "--package",
        "bub-cli",
        "--package",
        "bub-testkit",
        "--bin",
        "bub",
        "--bin",
        "picture",
    ])?;
    let program = |name: &str| {
        let is_named = |message: &&serde_json::Value| message["target"]["name"] == name;
        built
            .iter()
            .find(is_named)
            .and_then(|message| message["executable"].as_str())
            .ok_or_else(|| format!("cargo did not build `{name}`"))
    };
    let output = Command::new(program("picture")?)
        .arg(program("bub")?)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("cannot create the picture; see the output above".into());
    }
    let path = repository_root().join(PATH);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(&path, &output.stdout)?;
    println!("{PATH}: {} bytes", output.stdout.len());
    Ok(())
}
