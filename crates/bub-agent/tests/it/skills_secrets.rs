//! Skills and secrets: never in the text, and in the environment only if requested and granted.

use bub_agent::LoadedSkills;

use bub_kernel::testing::LogCapture;

use crate::skills::SkillFixture;

const TOKEN: &str = "correct-horse-battery";

fn asking(name: &str, env: &str) -> String {
    format!("---\nname: {name}\ndescription: d\nmetadata:\n  env: \"{env}\"\n---\nbody")
}

// W-36: no spelling gets a secret into the text.
#[test]
fn secrets_are_never_filled_in() {
    let config = "api_key: {openai: sk-other-secret-123}\ncompletion_args: {password: hunter2hunter2}\n\
                  telegram: {proxy: 'http://u:proxy-password@h'}\n";
    let fixture = SkillFixture::with(config, &[("BUB_TELEGRAM_TOKEN", TOKEN)]);
    let body = "[${config.telegram.token}] [${config.telegram}] [${config.api_key}] [${config.api_key.openai}] \
                [${config.completion_args.password}] [${config.telegram.proxy}]";
    let log = LogCapture::with_spans_from(tracing::Level::INFO);
    fixture.write(
        ".agents/skills/mine/SKILL.md",
        crate::skills::skill_text("mine", body),
    );
    let text = fixture.body("mine");
    assert_eq!(text, "[] [] [] [] [] [http://u:***@h]");
    fixture.body("mine");
    let warned = log.text();
    assert_eq!(log.count("`${config.telegram.token}` is empty because `telegram.token` is secret; request the variable BUB_TELEGRAM_TOKEN"), 1, "{warned}");
    for secret in [TOKEN, "sk-other", "hunter2", "proxy-password"] {
        assert!(
            !warned.contains(secret) && !text.contains(secret),
            "{secret}"
        );
    }
}

// A skill of an untrusted workspace is not used, also if the workspace changes while bub runs.
#[test]
fn a_skill_of_the_workspace_is_used_only_while_the_workspace_is_trusted() {
    let fixture = SkillFixture::new();
    let text = |body| crate::skills::skill_text("it", body);
    let file = fixture.write(".agents/skills/it/SKILL.md", text("own"));
    assert_eq!(fixture.body("it"), "own");
    let project = fixture.write("workspace/.agents/skills/it/SKILL.md", text("project"));
    assert_eq!(fixture.body("it"), "project");
    let script = fixture.write("workspace/.agents/skills/it/run.sh", "echo");
    assert_eq!(fixture.body("it"), "project");
    let log = LogCapture::with_spans_from(tracing::Level::INFO);
    std::fs::write(&script, "evil").unwrap();
    assert_eq!(fixture.body("it"), "own");
    std::fs::write(&project, text("evil")).unwrap();
    assert_eq!(fixture.body("it"), "own");
    assert_eq!(log.count("workspace.untrusted"), 1, "{}", log.text());
    assert_eq!(log.count("ignored=.agents/skills"), 1, "{}", log.text());
    // A running process notices the new decision.
    fixture.trust();
    assert_eq!(fixture.body("it"), "evil");
    let workspace = fixture.workspace().canonicalize().unwrap();
    let trust = fixture.settings.workspace_trust();
    assert!(trust.forget(&workspace).unwrap());
    assert_eq!(fixture.body("it"), "own");
    std::fs::remove_file(file).unwrap();
    assert!(fixture.find("it").is_none());
}

// W-36: only variables that a loaded skill requests, that are granted, and that exist.
#[test]
fn loaded_skills_get_what_they_ask_for_and_were_granted() {
    let config = "skills: {env: {mine: [FOO, BAR, NOT_ASKED, ABSENT, DROPPED, BUB_TELEGRAM_TOKEN], 'project:it': 'FOO, BAR', other: [FOO]}}\n\
                  telegram: {token: correct-horse-battery}\nenv: {drop: [DROPPED]}\n";
    let variables = [
        ("FOO", "foo-secret"),
        ("BAR", "bar-secret"),
        ("NOT_ASKED", "x"),
        ("NOT_GRANTED", "x"),
        ("DROPPED", "x"),
    ];
    let fixture = SkillFixture::with(config, &variables);
    fixture.write(
        ".agents/skills/mine/SKILL.md",
        asking(
            "mine",
            "FOO, NOT_GRANTED ABSENT,DROPPED, BUB_TELEGRAM_TOKEN, a=b, 1X",
        ),
    );
    fixture.write("workspace/.agents/skills/it/SKILL.md", asking("it", "BAR"));
    fixture.write(
        "workspace/.agents/skills/other/SKILL.md",
        asking("other", "FOO"),
    );
    let granted = |names: &[&str]| {
        let loaded = LoadedSkills::default();
        for name in names {
            fixture.skills.load(&fixture.find(name).unwrap(), &loaded);
        }
        let all = fixture.skills.granted_environment(&loaded);
        all.into_iter()
            .map(|(name, value)| format!("{name}={}", value.display()))
            .collect::<Vec<_>>()
    };
    assert_eq!(granted(&[]), [""; 0]);
    assert_eq!(
        granted(&["mine"]),
        ["FOO=foo-secret", "BUB_TELEGRAM_TOKEN=correct-horse-battery"]
    );
    assert_eq!(granted(&["it"]), ["BAR=bar-secret"]);
    // Granted to a global skill, not to a workspace skill with the same name.
    assert_eq!(granted(&["other"]), [""; 0]);
    assert_eq!(
        granted(&["it", "mine", "it"]),
        [
            "BAR=bar-secret",
            "FOO=foo-secret",
            "BUB_TELEGRAM_TOKEN=correct-horse-battery"
        ]
    );
    assert_eq!(
        fixture.find("mine").unwrap().requested_env(),
        [
            "FOO",
            "NOT_GRANTED",
            "ABSENT",
            "DROPPED",
            "BUB_TELEGRAM_TOKEN"
        ]
    );
}

// W-36: a skill that shadows a granted skill, before or after that was loaded, gets nothing.
#[test]
fn a_skill_of_the_workspace_cannot_take_over_a_grant() {
    let fixture = SkillFixture::with("skills: {env: {mine: [FOO]}}\n", &[("FOO", "foo-secret")]);
    fixture.write(".agents/skills/mine/SKILL.md", asking("mine", "FOO"));
    let loaded = LoadedSkills::default();
    fixture.write(
        "workspace/.agents/skills/mine/SKILL.md",
        asking("mine", "FOO"),
    );
    fixture.skills.load(&fixture.find("mine").unwrap(), &loaded);
    assert_eq!(fixture.skills.granted_environment(&loaded), []);
    std::fs::remove_dir_all(fixture.workspace().join(".agents")).unwrap();
    assert_eq!(fixture.find("mine").unwrap().source().to_string(), "global");
    assert_eq!(
        fixture.skills.granted_environment(&loaded),
        [],
        "the one that was loaded has no grant"
    );
}

// L7, W-37: a variable granted to a skill is a secret from the start: other child processes do not get it.
#[test]
fn granted_variables_are_kept_from_all_others() {
    let fixture = SkillFixture::with(
        "skills: {env: {mine: [FOO]}}\n",
        &[("FOO", "foo-secret"), ("PLAIN", "x")],
    );
    let names: Vec<_> = fixture
        .settings
        .child_environment()
        .into_iter()
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(
        names.contains(&"PLAIN".to_owned()) && !names.contains(&"FOO".to_owned()),
        "{names:?}"
    );
    assert_eq!(
        fixture.settings.redactor().redact("is foo-secret"),
        "is ***"
    );
}
