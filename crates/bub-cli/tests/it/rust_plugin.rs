//! External plugins in Rust: a new project, and programs that contain a plugin.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
};

use crate::sandbox::{Run, Sandbox, bub, example, root};

/// Builds a project with the artifacts of this workspace, so that only bub itself is compiled again, and runs its tests.
/// Nothing is downloaded: the versions of all crates are those of the workspace.
fn test_project(project: &Path) -> Run {
    std::fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = bub().parent().unwrap().parent().unwrap().to_owned();
    let mut command = Command::new(cargo);
    command
        .current_dir(project)
        .args(["test", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", target)
        // The setting of the workspace.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    Run::from_output(command.output().unwrap())
}

/// Design §3: the author writes hooks and tools, builds once, and adds the project.
#[test]
fn a_new_rust_project_passes_its_tests_and_serves_its_hook_and_tool() {
    let sandbox = Sandbox::new();
    let checkout = root();
    let new = ["plugin", "new", "hello-rs", "--lang", "rust", "--bub-path"].map(OsStr::new);
    let created = sandbox
        .bub(new.into_iter().chain([checkout.as_os_str()]))
        .ok();
    assert_eq!(
        created,
        "created hello-rs; to try it, run: cargo build --release --manifest-path hello-rs/Cargo.toml && bub plugin add hello-rs --unpinned\n"
    );
    let project = sandbox.workspace().join("hello-rs");
    let tested = test_project(&project);
    assert!(
        tested.code == Some(0) && tested.stdout.contains("2 passed"),
        "{tested:?}"
    );
    // The manifest names the release build, which has no artifacts here.
    std::fs::create_dir_all(project.join("target/release")).unwrap();
    let built = bub().with_file_name("hello-rs");
    std::fs::copy(built, project.join("target/release/hello-rs")).unwrap();
    // The checksum of a debug build takes seconds.
    sandbox
        .bub(["plugin", "add", "hello-rs", "--yes", "--unpinned"])
        .ok();
    let shown = sandbox.bub(["plugin", "show", "hello-rs"]).ok();
    assert!(
        shown.contains("hooks: run_model\ntools: hello-rs.count\n"),
        "{shown}"
    );
    assert_eq!(sandbox.bub(["run", "hello"]).ok(), "hello-rs says hello\n");
    let counted = sandbox.bub(["run", ",hello-rs.count text='one two three'"]);
    assert_eq!(counted.ok(), "3\n");
}

// `cargo fmt --check` passes in a new project, whatever its name is.
#[test]
fn a_new_rust_project_is_formatted() {
    for name in ["a", "hello-rs", "zoo", "a-plugin-with-a-rather-long-name"] {
        let sandbox = Sandbox::new();
        sandbox.bub(["plugin", "new", name, "--lang", "rust"]).ok();
        let mut rustfmt = Command::new("rustfmt");
        let files = ["src/lib.rs", "src/main.rs", "tests/plugin.rs"];
        rustfmt
            .current_dir(sandbox.workspace().join(name))
            .args(["--check", "--edition", "2024"])
            .args(files);
        let run = Run::from_output(rustfmt.output().unwrap());
        assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{name}");
    }
}

#[test]
fn a_program_that_is_not_built_or_older_than_its_sources_is_not_added() {
    let sandbox = Sandbox::new();
    sandbox
        .bub(["plugin", "new", "hello-rs", "--lang", "rust"])
        .ok();
    let project = sandbox.workspace().canonicalize().unwrap().join("hello-rs");
    let cargo = std::fs::read_to_string(project.join("Cargo.toml")).unwrap();
    let version = format!("bub = {{ version = \"{}\" }}\n", env!("CARGO_PKG_VERSION"));
    assert!(cargo.contains(&version), "{cargo}");
    let add = |problem: &str| {
        let run = sandbox.bub(["plugin", "add", "hello-rs", "--yes"]);
        assert_eq!(
            (run.code, run.stderr),
            (
                Some(2),
                format!(
                    "error: plugin `hello-rs` was not added: program `target/release/hello-rs` {problem}; \
                     run: cargo build --release --manifest-path {}/Cargo.toml\n",
                    project.display()
                )
            )
        );
    };
    add("not found: the plugin is not built");
    let (program, source) = (
        project.join("target/release/hello-rs"),
        project.join("src/lib.rs"),
    );
    sandbox.write("workspace/hello-rs/target/release/hello-rs", "");
    // The file that cargo writes beside the program.
    let rule = format!("{}: {}\n", program.display(), source.display());
    std::fs::write(program.with_extension("d"), rule).unwrap();
    let built = program.metadata().unwrap().modified().unwrap();
    let edited = std::fs::File::options().write(true).open(source).unwrap();
    edited
        .set_modified(built + std::time::Duration::from_secs(1))
        .unwrap();
    add("is older than `src/lib.rs`");
    let wrong = sandbox.bub(["plugin", "new", "tokio", "--lang", "rust"]);
    assert!(
        wrong.stderr.contains("depends on a crate of this name"),
        "{wrong:?}"
    );
}

// A program with all commands of bub is also an external plugin, and gets the settings that its manifest declares.
#[test]
fn a_program_that_contains_a_plugin_can_be_added_and_gets_its_settings() {
    let sandbox = Sandbox::new();
    let manifest = format!(
        "name: dictionary\ncommand: [{}]\nsettings: [{{name: server}}]\n",
        example("tools_with_client").display()
    );
    sandbox.write("workspace/dictionary/bub-plugin.yml", &manifest);
    sandbox
        .bub(["plugin", "add", "dictionary", "--yes", "--unpinned"])
        .ok();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        stream.write_all(b"a strip that records\n").unwrap();
        line
    });
    let mut command = sandbox.command(&bub());
    command.env("BUB_DICTIONARY_SERVER", address);
    let output = command
        .args(["run", ",dictionary.define word=tape"])
        .output();
    let defined = Run::from_output(output.unwrap()).ok();
    assert_eq!(defined, "a strip that records\n");
    assert_eq!(server.join().unwrap(), "define tape\n");
}

#[test]
fn a_plugin_that_a_user_starts_says_what_it_is() {
    let program = example("served_plugin");
    let no_args: [&str; 0] = [];
    assert_eq!(
        Sandbox::new().example("served_plugin", no_args).ok(),
        format!(
            "this program is a plugin for bub; to use it, run: bub plugin add {}\n",
            program.display()
        )
    );
}
