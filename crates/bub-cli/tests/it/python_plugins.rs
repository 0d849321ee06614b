//! Plugins of the Python version, which `bub install` installs from a directory of packages. Nothing is downloaded.

use std::{
    io::{BufRead as _, BufReader, Lines},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

use bub_testkit::{
    gateway::GatewayProcess,
    model::{ModelServer, Reply},
};
use serde_json::Value;

use crate::sandbox::{Run, Sandbox, bub, root, wait_until};

/// Package with a plugin that implements every hook of the Python version.
const EVERY_HOOK: &str = "every-hook";

/// Returns the directory of packages, which `scripts/python-packages` fills.
#[expect(clippy::disallowed_methods, reason = "tests have no settings")]
fn packages() -> PathBuf {
    std::env::var_os("BUB_PYTHON_PACKAGES").unwrap().into()
}

pub(crate) fn install(sandbox: &Sandbox, package: &str) -> Run {
    let packages = packages();
    let packages = packages.to_str().unwrap();
    sandbox.bub([
        "install",
        package,
        "--yes",
        "--no-index",
        "--find-links",
        packages,
    ])
}

/// P-94 to P-105: each hook is called as in the Python version, which wrote the expected trace.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn an_unmodified_plugin_with_every_hook_has_the_trace_of_the_python_version() {
    let sandbox = Sandbox::new();
    let added = install(&sandbox, EVERY_HOOK).ok();
    assert!(added.contains("added every-hook"), "{added}");
    let model = ModelServer::start();
    model.script(Reply::new().call("c1", "every_count", "{}"));
    model.otherwise(Reply::text("echo: go on"));
    let mut command = sandbox.command(&bub());
    command
        .args(["run", "TOOL every_count {}"])
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "a-key-of-the-test");
    Run::from_output(command.output().unwrap()).ok();
    let trace = std::fs::read_to_string(sandbox.workspace().join("trace.jsonl")).unwrap();
    let expected = root().join("crates/bub-cli/tests/data/python-plugin/trace.jsonl");
    assert_eq!(trace, std::fs::read_to_string(expected).unwrap());
    let shouted = sandbox.bub(["every", "shout", "--loud", "a", "b"]).ok();
    assert_eq!(shouted, "A B\n");
    assert_eq!(sandbox.bub(["every", "fail"]).code, Some(3));
}

/// The plugin in the README of the Python version, as it is there.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn the_plugin_of_the_python_versions_readme_runs_unmodified() {
    let sandbox = Sandbox::new();
    let added = install(&sandbox, "readme-plugin").ok();
    assert!(added.contains("added echo"), "{added}");
    assert_eq!(sandbox.bub(["run", "hello"]).ok(), "[echo] hello\n");
}

/// A scripted server of chat platforms. Killed when dropped.
struct ChatPlatforms {
    process: Child,
    replies: Lines<BufReader<ChildStdout>>,
    proxy: String,
}

impl ChatPlatforms {
    /// Starts the server with the packages of the installed plugins. Its certificate is in the workspace, where a plugin can
    /// read it.
    fn start(sandbox: &Sandbox) -> Self {
        let server = root().join("crates/bub-cli/tests/data/chat-platforms/server.py");
        let mut process = sandbox
            .command(&sandbox.home().join("plugins/python/bin/python"))
            .arg(server)
            .arg(sandbox.workspace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let replies = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = sandbox.workspace().join("address");
        wait_until("the server listens", || address.exists());
        Self {
            process,
            replies,
            proxy: std::fs::read_to_string(address).unwrap(),
        }
    }

    /// Waits for a reply to a user.
    fn next_reply(&mut self) -> Value {
        let events = self.replies.by_ref().map(|line| line.unwrap());
        let mut events = events.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        events.find(|event| event.get("content").is_some()).unwrap()
    }
}

impl Drop for ChatPlatforms {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Published packages, as they are: their channel starts, a message comes in, and a reply goes out.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
#[allow(clippy::print_stdout, reason = "a skipped test prints a note")]
fn channels_of_published_packages_receive_and_send_messages() {
    let has_package = |name: &str| {
        let files = std::fs::read_dir(packages()).unwrap().flatten();
        let mut names = files.map(|file| file.file_name().to_string_lossy().replace('-', "_"));
        names.any(|file| file.starts_with(name))
    };
    if !has_package("bub_discord") || !has_package("bub_feishu") {
        return println!("skipped: bub-discord and bub-feishu are not in BUB_PYTHON_PACKAGES");
    }
    let sandbox = Sandbox::new();
    install(&sandbox, "bub-discord").ok();
    install(&sandbox, "bub-feishu").ok();
    let mut platforms = ChatPlatforms::start(&sandbox);
    let model = ModelServer::start();
    model.otherwise(Reply::text("the answer"));
    let proxy = platforms.proxy.clone();
    let discord = [
        ("BUB_DISCORD_TOKEN", "token-of-discord"),
        ("BUB_DISCORD_PROXY", &proxy),
    ];
    let feishu = [
        ("BUB_FEISHU_APP_ID", "cli_1"),
        ("BUB_FEISHU_APP_SECRET", "secret-of-feishu"),
        ("HTTPS_PROXY", &proxy),
    ];
    // A plain message of Feishu is answered with the skill of the channel, a command by the channel.
    let cases = [
        ("discord", discord.as_slice(), "3003", "the answer"),
        (
            "feishu",
            feishu.as_slice(),
            "om_1",
            "last_anchor: session/start",
        ),
    ];
    for (channel, variables, chat, content) in cases {
        let certificate = sandbox.workspace().join("certificate.pem");
        let mut command = sandbox.command(&bub());
        command
            .args(["gateway", "--enable-channel", channel])
            .envs(variables.iter().copied())
            .env("NO_PROXY", "127.0.0.1")
            .env("SSL_CERT_FILE", &certificate)
            .env("REQUESTS_CA_BUNDLE", &certificate)
            .env("BUB_MODEL", "openai:small")
            .env("BUB_API_BASE", format!("{}/v1", model.url()))
            .env("BUB_API_KEY", "a-key-of-the-test");
        let gateway = GatewayProcess::start(command);
        let reply = platforms.next_reply();
        assert_eq!(reply["platform"], channel);
        assert_eq!(reply["chat"], chat);
        assert!(
            reply["content"].as_str().unwrap().contains(content),
            "{reply}"
        );
        gateway.stop();
    }
}

/// uv installs, lists and removes packages, if it is installed.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
#[allow(clippy::print_stdout, reason = "a skipped test prints a note")]
fn uv_manages_the_environment_if_it_is_installed() {
    if Command::new("uv").arg("--version").output().is_err() {
        return println!("skipped: uv not found");
    }
    let sandbox = Sandbox::new();
    let added = install(&sandbox, "readme-plugin").ok();
    assert!(added.contains("added echo"), "{added}");
    let settings = sandbox.home().join("plugins/python/pyvenv.cfg");
    let settings = std::fs::read_to_string(settings).unwrap();
    assert!(settings.contains("uv = "), "{settings}");
    assert_eq!(sandbox.bub(["run", "hello"]).ok(), "[echo] hello\n");
    let packages = packages();
    let sources = ["--no-index", "--find-links", packages.to_str().unwrap()];
    let updated = sandbox.bub(["update", "--yes"].iter().chain(&sources)).ok();
    assert!(
        updated.contains("readme-plugin") || updated.contains("echo"),
        "{updated}"
    );
    let removed = sandbox.bub(["uninstall", "readme-plugin"]).ok();
    assert!(
        removed.starts_with("removed echo (readme-plugin)"),
        "{removed}"
    );
}

/// P-6: a package can be removed and is then unknown.
#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_removed_package_leaves_no_plugin() {
    let sandbox = Sandbox::new();
    install(&sandbox, EVERY_HOOK).ok();
    let removed = sandbox.bub(["uninstall", EVERY_HOOK]).ok();
    assert!(
        removed.starts_with("removed every-hook (every-hook)"),
        "{removed}"
    );
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

#[bub_testkit::needs_fixtures(BUB_PYTHON_PACKAGES)]
#[test]
fn a_package_that_does_not_exist_is_an_error_and_adds_nothing() {
    let sandbox = Sandbox::new();
    let failed = install(&sandbox, "no-such-package");
    assert_eq!(failed.code, Some(2));
    assert!(failed.stderr.contains("failed: exit status"), "{failed:?}");
    assert!(
        sandbox
            .bub(["plugin", "list"])
            .ok()
            .starts_with("no plugins")
    );
}

#[test]
fn packages_are_not_installed_without_an_answer() {
    let sandbox = Sandbox::new();
    let refused = sandbox.bub(["install", "some-package"]);
    assert!(refused.stderr.contains("pass `--yes`"), "{refused:?}");
    assert!(!sandbox.home().join("plugins").exists());
}

/// The files that `bub install` writes are all files of the package.
#[test]
fn the_program_contains_every_file_of_the_python_package() {
    let source = root().join("crates/bub-cli/src/cli/install/package.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let package = root().join("sdk/python-compat/bub");
    let mut directories = vec![package.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("__pycache__") {
                directories.push(path);
            } else if path.extension().is_some_and(|suffix| suffix == "py") {
                let name = path.strip_prefix(&package).unwrap().to_str().unwrap();
                assert!(source.contains(&format!("compat!(\"{name}\")")), "{name}");
            }
        }
    }
}
