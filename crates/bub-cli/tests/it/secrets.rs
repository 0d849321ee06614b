//! Tests that a secret from any source appears only where it was stored.

use std::path::Path;

use bub_testkit::model::{ModelServer, Reply};

use crate::sandbox::{Run, Sandbox, bub, example};

/// One secret per source.
const SECRETS: &[(&str, &str)] = &[
    ("config", "config-correct-horse-1"),
    ("config, telegram", "110201543:config-correct-horse-2"),
    (
        "config, a plugin that is not loaded",
        "config-correct-horse-3",
    ),
    ("config, a header", "config-correct-horse-4"),
    ("config, an address", "config-correct-horse-5"),
    ("environment", "environment-correct-horse-1"),
    ("environment, a provider", "environment-correct-horse-2"),
    (
        "environment, the variable of a provider",
        "environment-correct-horse-3",
    ),
    (
        "environment, another program",
        "environment-correct-horse-4",
    ),
    ("environment, a proxy", "environment-correct-horse-5"),
    (".env", "dotenv-correct-horse-1"),
    (".env, a provider", "dotenv-correct-horse-2"),
    (".env, a plugin", "dotenv-correct-horse-3"),
    ("stdin", "typed-correct-horse-1"),
];

fn secret(source: &str) -> &'static str {
    SECRETS
        .iter()
        .find(|(known, _)| *known == source)
        .unwrap()
        .1
}

/// A home, a workspace and an environment that contain all secrets.
struct SecretsFixture {
    sandbox: Sandbox,
    server: ModelServer,
}

impl SecretsFixture {
    fn new() -> Self {
        let (sandbox, server) = (Sandbox::new(), ModelServer::start());
        // A server that echoes requests, including the key.
        server.answer_with(|request| {
            let sent = request
                .header("authorization")
                .unwrap_or_default()
                .to_owned();
            Reply::status(400).message(&format!("refused: {sent}"))
        });
        let config = format!(
            "model: openai:small\napi_base: {base}/v1\napi_key:\n  openai: {}\ntelegram:\n  token: '{}'\n  proxy: http://me:{}@127.0.0.1:1\n\
             unknown_plugin: {{password: {}}}\nclient_args: {{default_headers: {{Authorization: {}}}}}\n",
            secret("config"),
            secret("config, telegram"),
            secret("config, an address"),
            secret("config, a plugin that is not loaded"),
            secret("config, a header"),
            base = server.url(),
        );
        sandbox.write("home/config.yml", &config);
        let dotenv = format!(
            "BUB_API_KEY={}\nMISTRAL_API_KEY={}\nBUB_SHOP_TOKEN={}\n",
            secret(".env"),
            secret(".env, a provider"),
            secret(".env, a plugin")
        );
        sandbox.write("workspace/.env", &dotenv);
        sandbox.trust();
        Self { sandbox, server }
    }

    fn run(&self, program: &Path, args: &[&str], more: &[(&str, &str)]) -> Run {
        let mut command = self.sandbox.command(program);
        command
            .env("BUB_WEBHOOK_TOKEN", secret("environment"))
            .env("BUB_GROQ_API_KEY", secret("environment, a provider"))
            .env(
                "OPENROUTER_API_KEY",
                secret("environment, the variable of a provider"),
            )
            .env("GH_TOKEN", secret("environment, another program"))
            .env(
                "ALL_PROXY",
                format!("http://me:{}@127.0.0.1:1", secret("environment, a proxy")),
            )
            .env("NO_PROXY", "127.0.0.1")
            .env("BUB_LOG", "trace")
            .env("BUB_LOG_CONTENTS", "true")
            .env("BUB_LOG_FILE", self.sandbox.home().join("bub.log"))
            .envs(more.iter().copied());
        let run = Run::from_output(command.args(args).output().unwrap());
        for (source, secret) in SECRETS {
            assert!(
                !run.stdout.contains(secret),
                "{args:?} prints the secret of {source}: {}",
                run.stdout
            );
            assert!(
                !run.stderr.contains(secret),
                "{args:?} tells the secret of {source}: {}",
                run.stderr
            );
        }
        run
    }

    /// Returns all written files: tapes, logs and others.
    fn check_files(&self) {
        let mut directories = vec![self.sandbox.home()];
        let mut count = 0;
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.file_name().unwrap() != "config.yml" {
                    let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
                    count += 1;
                    for (source, secret) in SECRETS {
                        assert!(
                            !text.contains(secret),
                            "{} has the secret of {source}",
                            path.display()
                        );
                    }
                }
            }
        }
        assert!(count > 1, "neither a tape nor a log was written");
    }
}

// W-35: the Python version prints keys with the variables of a traceback
#[test]
fn no_command_shows_a_secret_of_any_source() {
    let planted = SecretsFixture::new();
    for args in [
        &["config", "list"][..],
        &["config", "list", "--json"],
        &["config", "get", "api_key"],
        &["config", "get", "api_key.openai", "--json"],
        &["config", "get", "telegram"],
        &["config", "get", "client_args", "--json"],
        &[
            "config",
            "set",
            "telegram.token",
            "110201543:config-correct-horse-2",
        ],
        &["doctor"],
        &["doctor", "--json"],
        &["models"],
        &["models", "--json"],
        &["run", "hello"],
        &["run", ",env"],
        &["run", ",cat .env"],
        &["run", ",no.such.command"],
        &["hooks"],
        &["policy", "list"],
        &["status"],
        &["tape", "list"],
        &["usage"],
        &["onboard", "--yes"],
        &["onboard"],
        &["--help"],
        &["no-such-command"],
    ] {
        planted.run(&bub(), args, &[]);
    }
    assert!(
        !planted.server.requests().is_empty(),
        "the model was called"
    );
    planted.check_files();
}

// W-35: also if a plugin uses the secret
#[test]
fn panics_errors_and_logs_of_a_plugin_show_no_secret() {
    let planted = SecretsFixture::new();
    for message in ["panic", "fail", "log"] {
        let run = planted.run(
            &example("faulty"),
            &["run", message, "-vvv"],
            &[("BUB_API_KEY", secret("environment"))],
        );
        assert!(
            run.stderr.contains("***"),
            "the secret was printed and redacted: {run:?}"
        );
    }
    planted.check_files();
}

// W-35, W-57: an invalid value is reported without the value
#[test]
fn mistakes_in_a_source_are_reported_without_its_secrets() {
    let planted = SecretsFixture::new();
    let key = secret("config");
    for config in [
        format!("api_key: [{key}]\n"),
        format!("api_key: {{openai: {{deep: {key}}}}}\n"),
        format!("api_key: {key}\nmodel: [\n"),
        format!("telegram: {key}\ntelegram.token: {key}\n"),
        format!("providers: {{lab: {{api_key: {key}}}}}\n"),
        format!("webhook: {{token: {{a: {key}}}}}\n"),
    ] {
        planted.sandbox.write("home/config.yml", &config);
        for args in [
            &["run", "hi"][..],
            &["config", "list"],
            &["config", "set", "max_steps", "3"],
            &["doctor", "--json"],
        ] {
            planted.run(&bub(), args, &[]);
        }
    }
}

// W-35: also for a typed secret
#[test]
fn what_is_read_from_stdin_is_not_shown_either() {
    let planted = SecretsFixture::new();
    let key = secret("stdin");
    for command in [
        "config set api_key.lab",
        "config set max_steps",
        "onboard --yes --model openai:small --api-key-stdin",
    ] {
        let script = format!("printf {key} | {} {command} -vvv", bub().display());
        planted.run(Path::new("sh"), &["-c", &script], &[]);
    }
}
