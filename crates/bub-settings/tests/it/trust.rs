//! Tests of trust in workspaces: what needs it, what a decision covers, and where it is stored.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    time::{Duration, Instant},
};

use bub_settings::{TrustItemKind, TrustReport};

use crate::fixture::{SettingsFixture, settings_fixture};

/// A workspace with one file of each kind.
fn full_fixture() -> SettingsFixture {
    settings_fixture()
        .untrusted()
        .dotenv("BUB_MODEL=a:b\nOPENAI_API_KEY=key\n")
        .file("work/.agents/skills/deploy/SKILL.md", "text")
        .file("work/.agents/skills/deploy/run.sh", "echo")
        .file("work/.agent/skills/old/SKILL.md", "text")
        .file("work/mcp.json", "{}")
        .file("work/.bub/plugins/p/plugin.json", "{}")
        .file("work/AGENTS.md", "Be brief.")
}

fn inspect(fixture: &SettingsFixture) -> TrustReport {
    fixture.trust().inspect(&fixture.path("work"))
}

fn trust(fixture: &SettingsFixture) {
    let mut report = inspect(fixture);
    fixture.trust().remember(&mut report, true).unwrap();
    assert!(report.is_trusted() && inspect(fixture).is_trusted());
}

#[test]
fn everything_that_changes_how_bub_works_needs_trust() {
    let fixture = full_fixture();
    let report = inspect(&fixture);
    assert!(!report.is_trusted() && report.needs_answer());
    assert_eq!(
        report.ignored_text(),
        ".env, .agents/skills, .agent/skills, mcp.json, .bub/plugins"
    );
    let names: Vec<_> = report
        .items
        .iter()
        .map(|item| item.names.join(" "))
        .collect();
    let expected = ["BUB_MODEL OPENAI_API_KEY", "deploy", "old", "", "p", ""];
    assert_eq!(names, expected);
    trust(&fixture);
    assert!(!inspect(&fixture).needs_answer());
}

#[test]
fn a_workspace_with_nothing_to_trust_is_not_asked_about() {
    let fixture = settings_fixture().dotenv("# no variables\n");
    fs::create_dir_all(fixture.path("work/.agents/skills")).unwrap();
    let report = inspect(&fixture);
    assert!(report.is_trusted() && !report.needs_answer());
    assert!(!fixture.path("user/.bub/trust.json").exists());
}

// A change is asked about again.
#[test]
fn any_change_ends_the_trust_in_the_whole_workspace() {
    let changes: [fn(&SettingsFixture); 7] = [
        |fixture| fs::write(fixture.path("work/.env"), "BUB_MODEL=c:d\n").unwrap(),
        |fixture| fs::write(fixture.path("work/.agents/skills/deploy/run.sh"), "evil").unwrap(),
        |fixture| fs::write(fixture.path("work/.agents/skills/deploy/more"), "").unwrap(),
        |fixture| fs::remove_file(fixture.path("work/.agents/skills/deploy/run.sh")).unwrap(),
        |fixture| {
            let name = |name| fixture.path(&format!("work/.agents/skills/{name}"));
            fs::rename(name("deploy"), name("telegram")).unwrap();
        },
        |fixture| fs::write(fixture.path("work/mcp.json"), "{ }").unwrap(),
        |fixture| fs::write(fixture.path("work/.bub/plugins/p/plugin.json"), "").unwrap(),
    ];
    for (number, change) in changes.iter().enumerate() {
        let fixture = full_fixture();
        trust(&fixture);
        change(&fixture);
        let report = inspect(&fixture);
        assert!(!report.is_trusted() && report.needs_answer(), "{number}");
        assert_eq!(report.ignored_items().count(), 5, "{number}");
    }
    // The model gets changed instructions in any case, so they end only the trust in themselves.
    let fixture = full_fixture();
    trust(&fixture);
    fs::write(fixture.path("work/AGENTS.md"), "Be evil.").unwrap();
    let report = inspect(&fixture);
    assert!(report.is_trusted() && report.needs_answer());
    let trust = fixture.trust();
    let path = fixture.path("work/AGENTS.md").canonicalize().unwrap();
    assert!(trust.are_instructions_trusted(&path, b"Be brief."));
    assert!(!trust.are_instructions_trusted(&path, b"Be evil."));
}

#[test]
fn a_content_behind_a_link_is_part_of_the_digest() {
    let fixture = settings_fixture().file("work/tools/x/SKILL.md", "text");
    fs::create_dir_all(fixture.path("work/.agents/skills")).unwrap();
    symlink("../../tools/x", fixture.path("work/.agents/skills/x")).unwrap();
    symlink(".", fixture.path("work/tools/x/cycle")).unwrap();
    symlink("nowhere", fixture.path("work/tools/x/broken")).unwrap();
    trust(&fixture);
    fs::write(fixture.path("work/tools/x/SKILL.md"), "evil").unwrap();
    assert!(!inspect(&fixture).is_trusted());
}

// "no" is remembered for this digest.
#[test]
fn a_declined_workspace_is_not_asked_about_until_it_changes() {
    let fixture = full_fixture();
    let mut report = inspect(&fixture);
    fixture.trust().remember(&mut report, false).unwrap();
    assert!(report.is_declined);
    let report = inspect(&fixture);
    assert!(report.is_declined && !report.is_trusted() && !report.needs_answer());
    fs::write(fixture.path("work/mcp.json"), "{ }").unwrap();
    assert!(inspect(&fixture).needs_answer());
    trust(&fixture);
}

#[test]
fn a_decision_covers_a_dotenv_for_directories_below() {
    let fixture = settings_fixture().dotenv("BUB_MODEL=a:b\n");
    fs::create_dir(fixture.path("work/inner")).unwrap();
    trust(&fixture);
    let report = fixture.trust().inspect(&fixture.path("work/inner"));
    assert!(report.is_trusted() && report.items.len() == 1);
}

#[test]
fn files_in_the_home_directories_are_the_users_own() {
    let fixture = settings_fixture()
        .file("user/AGENTS.md", "Be brief.")
        .file("user/.agents/skills/x/SKILL.md", "text")
        .file("user/.agent/skills/x/SKILL.md", "text")
        .file("user/.bub/mcp.json", "{}")
        .file("user/.bub/plugins/x", "");
    for own in ["user", "user/.bub"] {
        let report = fixture.trust().inspect(&fixture.path(own));
        assert!(report.items.is_empty(), "{:?}", report.items);
    }
    let fixture = settings_fixture()
        .file("user/.env", "BUB_MODEL=own:model\n")
        .file("user/project/.agents/skills/x/SKILL.md", "text");
    let environment = bub_settings::Environment::from_pairs([("HOME", fixture.user_home())]);
    let directory = fixture.path("user/project");
    let trust = bub_settings::WorkspaceTrust::new(&environment, Some(&directory));
    let report = trust.inspect(&directory);
    assert_eq!(report.ignored_text(), ".agents/skills");
    let loader = bub_settings::Loader::new(environment).workspace(trust, report);
    let settings = loader.sections(crate::sample::sections()).load().unwrap();
    assert_eq!(settings.get(&crate::sample::MODEL).unwrap(), "own:model");
}

#[test]
fn decisions_are_private_and_can_be_removed() {
    let fixture = full_fixture();
    trust(&fixture);
    let file = fixture.path("user/.bub/trust.json");
    let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    let records = fixture.trust().records().unwrap();
    assert!(records.len() == 1 && records[0].is_trusted && records[0].is_current());
    assert_eq!(records[0].items.len(), 6);
    assert_eq!(records[0].items[0].kind, TrustItemKind::Settings);
    fs::write(fixture.path("work/AGENTS.md"), "more").unwrap();
    assert!(!fixture.trust().records().unwrap()[0].is_current());
    let workspace = fixture.path("work").canonicalize().unwrap();
    assert!(fixture.trust().forget(&workspace).unwrap());
    assert!(!fixture.trust().forget(&workspace).unwrap());
    assert!(!inspect(&fixture).is_trusted());
}

#[test]
fn decisions_that_others_can_change_do_not_count() {
    let fixture = full_fixture();
    trust(&fixture);
    let file = fixture.path("user/.bub/trust.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(!inspect(&fixture).is_trusted());
    let error = fixture.trust().records().unwrap_err().to_string();
    assert!(
        error.contains("trust.json: not safe to use: every user"),
        "{error}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "{").unwrap();
    assert!(!inspect(&fixture).is_trusted());
    assert!(
        fixture
            .trust()
            .remember(&mut inspect(&fixture), true)
            .is_err()
    );
}

// A `.env` cannot choose the home that has the decisions.
#[test]
fn a_dotenv_cannot_bring_its_own_decisions() {
    let fixture = full_fixture();
    trust(&fixture);
    let decisions = fs::read(fixture.path("user/.bub/trust.json")).unwrap();
    let fixture = full_fixture().file("work/home/trust.json", decisions);
    let home = fixture.path("work/home");
    let fixture = fixture.dotenv(format!("BUB_HOME={}\nBUB_MODEL=evil:x\n", home.display()));
    assert_eq!(fixture.load().home(), fixture.path("user/.bub"));
    assert_eq!(
        fixture.trust().file(),
        Some(&*fixture.path("user/.bub/trust.json"))
    );
}

// A huge tree does not delay the start, and cannot be trusted.
#[test]
fn too_large_trees_are_untrusted_and_cost_little() {
    let fixture = settings_fixture().file("work/.agents/skills/x/SKILL.md", "text");
    let directory = fixture.path("work/.agents/skills/x");
    for number in 0..3000 {
        fs::write(directory.join(number.to_string()), "").unwrap();
    }
    let big = settings_fixture().file("work/.agents/skills/x/SKILL.md", "text");
    let sparse = fs::File::create(big.path("work/.agents/skills/x/big")).unwrap();
    sparse.set_len(100 << 30).unwrap();
    for fixture in [fixture, big] {
        let start = Instant::now();
        let mut report = inspect(&fixture);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(!report.is_trusted() && !report.needs_answer());
        assert_eq!(
            report.ignored_text(),
            ".agents/skills (cannot be trusted: more than 2,000 files or 8 MiB)"
        );
        fixture.trust().remember(&mut report, true).unwrap();
        assert!(!inspect(&fixture).is_trusted());
    }
}
