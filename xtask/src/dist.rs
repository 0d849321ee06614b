//! `cargo xtask dist`: the static binary for Linux.

use crate::{Outcome, build, root, said};

const TARGET: &str = "x86_64-unknown-linux-musl";

pub(crate) fn run() -> Outcome<()> {
    let installed = said("rustc", &["--print", "target-libdir", "--target", TARGET]);
    if !std::path::Path::new(&installed).exists() {
        return Err(format!("the target is missing: rustup target add {TARGET}").into());
    }
    if said("musl-gcc", &["--version"]).is_empty() {
        return Err("a C compiler for it is missing: the package musl-tools has musl-gcc".into());
    }
    let built =
        build(&["build", "--release", "--locked", "--package", "bub", "--bin", "bub", "--target", TARGET])?;
    let program =
        built.last().and_then(|program| program["executable"].as_str()).ok_or("nothing was built")?;
    let directory = root().join("target/dist");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("bub");
    let size = std::fs::copy(program, &path)?;
    let shown = path.to_string_lossy();
    let packed = said("sh", &["-c", "gzip -9 <\"$0\" | wc -c", &shown]);
    // It says this on its standard error when there is nothing to link.
    let linked = said("sh", &["-c", "ldd \"$0\" 2>&1", &shown]);
    if !linked.contains("statically linked") && !linked.contains("not a dynamic executable") {
        return Err(format!("{shown} is not static:\n{linked}").into());
    }
    println!("{shown}: {size} bytes, {packed} compressed by gzip; {}", linked.trim());
    println!("a container: docker build -f Containerfile target/dist");
    Ok(())
}
