//! Tests of the `.env` of the workspace.

use crate::fixture::SettingsFixture;
use crate::sample;

// C.7, H-22
#[test]
fn dotenv_never_overrides_the_process_environment() {
    let fixture = SettingsFixture::new()
        .dotenv("BUB_MODEL=dot:env\nBUB_MAX_TOKENS=7\n")
        .env("BUB_MODEL", "process:env");
    let settings = fixture.load();
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "process:env");
    assert_eq!(settings.get(&sample::MAX_TOKENS), 7);
}

// design §11: trusted settings
#[test]
fn trusted_settings_are_ignored_from_an_untrusted_workspace() {
    let text = "BUB_API_BASE=http://evil\nBUB_OPENAI_API_BASE=http://evil\nBUB_HOME=/evil\nBUB_CLIENT_ARGS={}\n\
                BUB_TELEGRAM_ALLOW_USERS=evil\nBUB_TELEGRAM_PROXY=http://evil\nBUB_ENV_PASS=X\nbub_env_drop=X\n\
                BUB_FS_CONFINE=false\n\
                BUB_MODEL=still:fine\nBUB_OPENAI_API_KEY=also-fine\n";
    let fixture = SettingsFixture::new().dotenv(text);
    let settings = fixture.load();
    assert!(settings.get(&sample::API_BASE).is_empty());
    assert_eq!(settings.home(), fixture.path("user/.bub"));
    assert_eq!(settings.get(&sample::TELEGRAM_ALLOW_USERS), None);
    assert_eq!(settings.get(&sample::MODEL).unwrap(), "still:fine");
    assert_eq!(
        settings
            .get(&sample::API_KEY)
            .get("openai")
            .unwrap()
            .expose(),
        "also-fine"
    );
    let warnings = fixture.warnings();
    assert_eq!(warnings.len(), 9, "{warnings:#?}");
    assert!(
        warnings.contains(
            &"work/.env:2 (BUB_OPENAI_API_BASE): `api_base` is ignored: this workspace is not trusted to set it; set it in the environment or the config file"
                .into()
        )
    );

    let fixture = SettingsFixture::new().dotenv(text).trusted();
    let settings = fixture.load();
    assert_eq!(
        settings
            .get(&sample::API_BASE)
            .get("groq")
            .map(String::as_str),
        Some("http://evil")
    );
    assert_eq!(settings.home().to_str(), Some("/evil"));
    assert_eq!(fixture.warnings(), Vec::<String>::new());
}

#[test]
fn an_untrusted_dotenv_cannot_read_secrets_of_the_process() {
    let fixture =
        SettingsFixture::new().dotenv("BUB_MODEL=evil:${AWS_SECRET_ACCESS_KEY}-${USER}\n");
    let fixture = fixture
        .env("AWS_SECRET_ACCESS_KEY", "hush-hush")
        .env("USER", "ada");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "evil:-ada");
    assert_eq!(
        fixture.warnings(),
        [
            "work/.env:1: `${AWS_SECRET_ACCESS_KEY}` is empty: this workspace is not trusted to read it; remove the reference"
        ]
    );
    assert_eq!(
        fixture.trusted().load().get(&sample::MODEL).unwrap(),
        "evil:hush-hush-ada"
    );
}

// C.7
#[test]
fn a_line_that_is_no_assignment_is_named_and_skipped() {
    let fixture = SettingsFixture::new().dotenv("this is not one\nBUB_MODEL=a:b\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(
        fixture.warnings(),
        ["work/.env:1: line ignored: not a `NAME=value` line"]
    );
    let fixture = SettingsFixture::new().dotenv("A=1\nBUB_API_KEY=\"hush-hush\nBUB_MODEL=a:b\n");
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(
        fixture.warnings(),
        ["work/.env:2: line ignored: the quote is not closed"]
    );
}

#[test]
fn providers_own_variables_are_found_in_dotenv_too() {
    let fixture = SettingsFixture::new().dotenv("OPENAI_API_KEY=from-dotenv\nEMPTY=\n");
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
    let fixture = SettingsFixture::new().dotenv("BUB_MODEL=a:b\n");
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
    let fixture = SettingsFixture::new().config("model: a:b\n");
    std::fs::create_dir(fixture.path("work/.env")).unwrap();
    assert_eq!(fixture.load().get(&sample::MODEL).unwrap(), "a:b");
    assert_eq!(
        fixture.warnings(),
        ["work/.env: cannot be read: not a regular file; the file is ignored"]
    );
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
        assert_eq!(SettingsFixture::new().dotenv(content).warnings(), [warning]);
    }
    let text = "BUB_MAX_STEPS=3\nBUB_MAX_TOKENS=lots\nBUB_OTHERAPP_API_KEY='hunter2 hunter2'\nBUB_API_KEY='{hunter2hunter2'\n";
    let fixture = SettingsFixture::new()
        .config("max_tokens: 7\n")
        .dotenv(text);
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
