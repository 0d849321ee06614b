//! `cargo xtask dist`: builds the static binary for Linux and the container images.

use std::process::Command;

use crate::{TaskResult, build, command_output, root};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Images of `Containerfile`: names and build stages.
const IMAGES: [(&str, Option<&str>); 2] = [("bub", None), ("bub:bare", Some("bare"))];

pub(crate) fn run(with_images: bool) -> TaskResult<()> {
    let installed = command_output("rustc", &["--print", "target-libdir", "--target", TARGET]);
    if !std::path::Path::new(&installed).exists() {
        return Err(format!("the target is missing: rustup target add {TARGET}").into());
    }
    if command_output("musl-gcc", &["--version"]).is_empty() {
        return Err("a C compiler for it is missing: the package musl-tools has musl-gcc".into());
    }
    let built = build(&[
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
        .ok_or("nothing was built")?;
    let directory = root().join("target/dist");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("bub");
    let size = std::fs::copy(program, &path)?;
    let shown = path.to_string_lossy();
    let packed = command_output("sh", &["-c", "gzip -9 <\"$0\" | wc -c", &shown]);
    // `ldd` prints this to stderr if the binary is static.
    let linked = command_output("sh", &["-c", "ldd \"$0\" 2>&1", &shown]);
    if !linked.contains("statically linked") && !linked.contains("not a dynamic executable") {
        return Err(format!("{shown} is not static:\n{linked}").into());
    }
    println!(
        "{shown}: {size} bytes, {packed} compressed by gzip; {}",
        linked.trim()
    );
    if with_images { images() } else { Ok(()) }
}

fn images() -> TaskResult<()> {
    let builder = ["docker", "podman"]
        .into_iter()
        .find(|program| !command_output(program, &["--version"]).is_empty());
    let builder = builder.ok_or("cannot build images: docker or podman not found")?;
    for (name, stage) in IMAGES {
        let mut build = Command::new(builder);
        build
            .args(["build", "--tag", name, "--file", "Containerfile"])
            .current_dir(root());
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
