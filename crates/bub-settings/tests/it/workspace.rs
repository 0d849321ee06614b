//! Tests of the `.env` of the workspace.

use crate::fixture::settings_fixture;
use crate::sample;

// C.7, H-22
#[test]
fn dotenv_never_overrides_the_process_environment() {
    let fixture = settings_fixture()
        .dotenv("BUB_MODEL=dot:env\nBUB_MAX_TOKENS=7\n")
        .env("BUB_MODEL", "process:env");
    let settings = fixture.load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "process:env");
    assert_eq!(settings.get(&sample::MAX_TOKENS), 7);
}

// Nothing of an untrusted `.env` is used, not even what looks harmless.
#[test]
fn an_untrusted_dotenv_sets_nothing() {
    let text = "BUB_API_BASE=http://evil\nBUB_OPENAI_API_BASE=http://evil\nBUB_HOME=/evil\nBUB_CLIENT_ARGS={}\n\
                BUB_TELEGRAM_ALLOW_USERS=evil\nBUB_FS_CONFINE=false\nBUB_MODEL=evil:${AWS_SECRET_ACCESS_KEY}\n\
                BUB_OPENAI_API_KEY=evil-key-1\nGROQ_API_KEY=evil-key-2\nGROQ_API_BASE=http://evil\n";
    let fixture = settings_fixture()
        .env("AWS_SECRET_ACCESS_KEY", "hush-hush")
        .dotenv(text)
        .untrusted();
    let settings = fixture.load();
    assert_eq!(settings.home(), fixture.path("user/.bub"));
    let is_default = |origin| origin == bub_settings::SettingSource::Default;
    assert!(settings.entries().all(|entry| is_default(entry.origin)));
    assert_eq!(settings.secret_variable("GROQ_API_KEY").unwrap(), None);
    assert_eq!(settings.variable("GROQ_API_BASE"), None);
    assert_eq!(settings.trust_report().ignored_text(), ".env");

    let settings = fixture.trusted().load();
    let bases = settings.get(&sample::API_BASE);
    assert_eq!(bases.get("groq").map(String::as_str), Some("http://evil"));
    assert_eq!(settings.home().to_str(), Some("/evil"));
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "evil:hush-hush");
    let base = settings.variable("GROQ_API_BASE").unwrap();
    assert_eq!(base.0, "http://evil");
    assert!(base.1.to_string().ends_with("work/.env:10 (GROQ_API_BASE)"));
}

// The agent can read the file, so its secrets must not leak.
#[test]
fn secrets_in_an_untrusted_dotenv_are_masked() {
    let text = "BUB_API_KEY='{\"openai\": \"correct-horse-1\"}'\nDB_PASSWORD=correct-horse-2\n\
                PROXY=http://u:correct-horse-3@h\nHARMLESS=word-word-word\n";
    let fixture = settings_fixture().dotenv(text).untrusted();
    fixture.load();
    let masked = fixture
        .redactor
        .redact("correct-horse-1 correct-horse-2 correct-horse-3 word-word-word");
    assert_eq!(masked, "*** *** *** word-word-word");
}

// P-15: as in python-dotenv, which the Python version uses.
#[test]
fn the_nearest_dotenv_upward_is_read() {
    let fixture = settings_fixture().file(".env", "BUB_MODEL=upper:model\nBUB_MAX_TOKENS=7\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "upper:model");
    // A directory with this name is often a Python environment.
    std::fs::create_dir(fixture.path("work/.env")).unwrap();
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "upper:model");
    assert_eq!(fixture.warnings(), Vec::<String>::new());
    std::fs::remove_dir(fixture.path("work/.env")).unwrap();
    let fixture = fixture.dotenv("BUB_MODEL=nearest:model\n");
    let settings = fixture.load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "nearest:model");
    // Only one file is read.
    assert_eq!(settings.get(&sample::MAX_TOKENS), 16_384);
}

// P-15: python-dotenv 1.x with `override=False`.
#[test]
fn references_prefer_the_environment_to_the_file() {
    let text = "A=file\nBUB_MODEL=x:${A}-${B}\nB=later\n";
    let fixture = settings_fixture().dotenv(text).env("A", "process");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "x:process-");
    let fixture = settings_fixture().dotenv("A=file\nBUB_MODEL='x:${A}'\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "x:file");
}

// C.7
#[test]
fn a_line_that_is_no_assignment_is_named_and_skipped() {
    let fixture = settings_fixture().dotenv("this is not one\nBUB_MODEL=a:b\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(
        fixture.warnings(),
        ["work/.env:1: line ignored: not a `NAME=value` line"]
    );
    let fixture = settings_fixture().dotenv("A=1\nBUB_API_KEY=\"hush-hush\nBUB_MODEL=a:b\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(
        fixture.warnings(),
        ["work/.env:2: line ignored: the quote is not closed"]
    );
}

#[test]
fn providers_own_variables_are_found_in_dotenv_too() {
    let fixture = settings_fixture().dotenv("OPENAI_API_KEY=from-dotenv\nEMPTY=\n");
    let settings = fixture.load();
    assert_eq!(
        settings
            .secret_variable("OPENAI_API_KEY")
            .unwrap()
            .unwrap()
            .expose(),
        "from-dotenv"
    );
    assert_eq!(settings.secret_variable("EMPTY").unwrap(), None);
    assert_eq!(fixture.redactor.redact("key from-dotenv"), "key ***");
}

// C.7
#[test]
fn no_workspace_means_no_dotenv() {
    let fixture = settings_fixture().dotenv("BUB_MODEL=a:b\n");
    let env = bub_settings::Environment::from_pairs([("HOME", fixture.user_home())]);
    let settings = bub_settings::Loader::new(env)
        .sections(sample::sections())
        .load()
        .unwrap();
    assert_eq!(settings.get(&sample::MODEL), None);
    assert!(fixture.root().join("work/.env").exists());
}

#[test]
fn a_dotenv_of_somebody_else_is_warned_of_and_locks_nobody_out() {
    for (content, warning) in [
        (
            vec![b'A', b'=', 0xff],
            "work/.env: not valid UTF-8 text; convert it to UTF-8; the file is ignored",
        ),
        (
            vec![b'#'; 1024 * 1024 + 1],
            "work/.env: cannot be read: larger than 1 MiB; the file is ignored",
        ),
    ] {
        assert_eq!(settings_fixture().dotenv(content).warnings(), [warning]);
    }
    let text = "BUB_MAX_STEPS=3\nBUB_MAX_TOKENS=lots\nBUB_OTHERAPP_API_KEY='hunter2 hunter2'\nBUB_API_KEY='{hunter2hunter2'\n";
    let fixture = settings_fixture().config("max_tokens: 7\n").dotenv(text);
    let settings = fixture.load();
    assert_eq!(
        (
            settings.get(&sample::MAX_STEPS),
            settings.get(&sample::MAX_TOKENS)
        ),
        (Some(3), 7)
    );
    let warnings = fixture.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:#?}");
    let expected = "work/.env:2 (BUB_MAX_TOKENS): `max_tokens` is `lots`, expected a whole number of at least 1; the line is ignored";
    assert!(warnings.contains(&expected.to_owned()), "{warnings:#?}");
    // W-35
    assert!(
        !warnings.iter().any(|warning| warning.contains("hunter2")),
        "{warnings:#?}"
    );
}
