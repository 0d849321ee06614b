//! Real work in the default profile, with the tools of the user who runs the tests.

use std::process::Command;

use bub_sandbox::{Confinement, SandboxProfile};

use crate::harness::{SandboxFixture, launcher};

/// Runs a script confined in the workspace, with `PATH` and `HOME` of this process.
#[expect(clippy::disallowed_methods, reason = "the tools of the user are tried")]
fn assert_works(fixture: &SandboxFixture, script: &str) {
    let workspace = fixture.path("home/work");
    let confinement = Confinement::from_environment(
        SandboxProfile::Workspace,
        &workspace,
        &fixture.path("temp"),
        |name| std::env::var_os(name),
    );
    let mut command = confinement.unwrap().command(&launcher(), "bash").unwrap();
    command.args(["-ec", script]).current_dir(workspace);
    // A cache for compilers, if this machine has one, is not part of the project.
    command.env("RUSTC_WRAPPER", "");
    command.env_remove("CARGO_TARGET_DIR");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

fn has_tool(name: &str) -> bool {
    let output = Command::new(name).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

// Clone, build and test, commit, a server on loopback.
#[test]
fn projects_are_cloned_built_tested_and_committed() {
    let fixture = SandboxFixture::for_each_user().remove(0);
    std::fs::remove_dir_all(fixture.path("home/work/.git")).unwrap();
    let commit = "git add -A && git -c user.name=a -c user.email=a@b commit -q -m first";
    let clone = format!(
        "git init -q origin && cd origin && echo a > a && {commit} && cd .. && git clone -q origin copy && cd copy && echo b > b && {commit} && git push -q origin HEAD:refs/heads/other && git log --oneline | wc -l | grep 2"
    );
    assert_works(&fixture, &clone);
    if has_tool("cargo") {
        let build = "cargo new -q --lib demo && cd demo && cargo test -q --offline && cargo build -q --offline --release";
        assert_works(&fixture, build);
    }
    if has_tool("npm") {
        let test = "mkdir node && cd node && npm init -y > /dev/null && npm pkg set scripts.test='node test.js' && echo 'require(\"assert\").equal(1, 1)' > test.js && npm test";
        assert_works(&fixture, test);
    }
    if has_tool("python3") {
        let test = "mkdir python && cd python && python3 -m venv --without-pip .venv && printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test(self): pass\\n' > test_it.py && .venv/bin/python -m unittest";
        assert_works(&fixture, test);
        let serve = "python3 -u -m http.server --bind 127.0.0.1 0 > log & until grep -o 'port [0-9]*' log; do kill -0 $!; done; python3 -c \"import re,urllib.request as u; p=re.search(r'port (\\d+)', open('log').read())[1]; print(u.urlopen('http://127.0.0.1:'+p).status)\"; kill $!";
        assert_works(&fixture, serve);
    }
    let output = Command::new("git")
        .args(["log", "--oneline"])
        .current_dir(fixture.path("home/work/copy"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
