//! `cargo xtask dist`: builds the static binary for Linux and the container images.

use std::process::Command;

use crate::{TaskResult, cargo_build, command_output, repository_root};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Images of `Containerfile`: names and build stages.
const IMAGES: [(&str, Option<&str>); 2] = [("bub", None), ("bub:bare", Some("bare"))];

pub(crate) fn run(with_images: bool) -> TaskResult<()> {
    let installed = command_output("rustc", &["--print", "target-libdir", "--target", TARGET]);
    if !std::path::Path::new(&installed).exists() {
        return Err(
            format!("target `{TARGET}` not installed; run `rustup target add {TARGET}`").into(),
        );
    }
    if command_output("musl-gcc", &["--version"]).is_empty() {
        return Err("C compiler `musl-gcc` not found; install the package musl-tools".into());
    }
    // Each part takes long. cargo and the image builder show how far they are.
    let parts = if with_images { 3 } else { 2 };
    eprintln!("1 of {parts}: building for {TARGET}");
    let built = cargo_build(&[
        "build",
        "--release",
        "--locked",
        "--package",
        "bub-cli",
        "--bin",
        "bub",
        "--target",
        TARGET,
    ])?;
    let program = built
        .last()
        .and_then(|program| program["executable"].as_str())
        .ok_or("cargo built no program")?;
    let directory = repository_root().join("target/dist");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("bub");
    let size = std::fs::copy(program, &path)?;
    let path_text = path.to_string_lossy();
    eprintln!("2 of {parts}: compressing and checking {path_text}");
    let packed = command_output("sh", &["-c", "gzip -9 <\"$0\" | wc -c", &path_text]);
    // `ldd` prints this to stderr if the binary is static.
    let linked = command_output("sh", &["-c", "ldd \"$0\" 2>&1", &path_text]);
    if !linked.contains("statically linked") && !linked.contains("not a dynamic executable") {
        return Err(format!("{path_text} is not static:\n{linked}").into());
    }
    println!(
        "{path_text}: {size} bytes, {packed} compressed by gzip; {}",
        linked.trim()
    );
    if !with_images {
        return Ok(());
    }
    eprintln!("3 of {parts}: building the images");
    build_images()
}

fn build_images() -> TaskResult<()> {
    let builder = ["docker", "podman"]
        .into_iter()
        .find(|program| !command_output(program, &["--version"]).is_empty());
    let builder = builder.ok_or("cannot build images: docker or podman not found")?;
    for (name, stage) in IMAGES {
        let mut build = Command::new(builder);
        build
            .args(["build", "--tag", name, "--file", "Containerfile"])
            .current_dir(repository_root());
        if let Some(stage) = stage {
            build.args(["--target", stage]);
        }
        if !build.arg("target/dist").status()?.success() {
            return Err(format!(
                "{builder} could not build the image {name}; see its output above"
            )
            .into());
        }
        let size = command_output(
            builder,
            &["image", "inspect", "--format", "{{.Size}}", name],
        );
        println!("image {name}: {size} bytes, with its base");
    }
    Ok(())
}
