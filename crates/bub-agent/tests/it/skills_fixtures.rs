//! Skills from other repositories: bub accepts the same files as the Python version and reads the same text.
//!
//! `BUB_FIXTURES` names the directory with `skills/manifest.jsonl`, which has the result of the Python version for
//! each file.
//! There are no differences for these files. A comparison of 2,300 damaged and constructed files found a few others,
//! in which bub accepts more: it skips a byte order mark; a date, a time (`12:30`), `.inf`, `=` or `<<` as a value is
//! text; keys in `metadata` are text; tabs and rare line breaks are allowed in unquoted text. If a file ends with the
//! closing `---`, its body is empty (the Python version uses the frontmatter as the body). bub rejects only two forms
//! that the Python version accepts: a lone `-` in `{k: -}` and an anchor on a key.

use std::{fs, path::Path};

use bub_agent::Skills;
use serde_json::Value;

use crate::skills::SkillFixture;

// H-136, H-137
#[bub_testkit::needs_fixtures]
#[test]
fn every_fixture_gets_the_verdict_of_the_original() {
    let root = bub_testkit::fixtures("skills");
    let manifest = fs::read_to_string(root.join("manifest.jsonl")).unwrap();
    let mut counts = [0, 0];
    for line in manifest.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let file = root.join(row["file"].as_str().unwrap());
        let directory = file.parent().unwrap();
        let accepted = row["verdict_bub_0.5.1"] == "accepted";
        counts[usize::from(accepted)] += 1;
        match Skills::check_skill(directory) {
            Ok(skill) => {
                assert!(accepted, "{} is accepted", file.display());
                assert_eq!(skill.name(), row["bub_name"], "{}", file.display());
                let length = skill.description().chars().count();
                assert_eq!(
                    length as u64,
                    row["bub_description_chars"],
                    "{}: {}",
                    file.display(),
                    skill.description()
                );
                check_body(&file, skill.name());
            }
            Err(problem) => assert!(!accepted, "{problem}"),
        }
    }
    assert!(counts[0] > 10 && counts[1] > 50, "{counts:?}");
}

/// The body is the rest of the file. In these files, `$$` is the only placeholder.
fn check_body(file: &Path, name: &str) {
    let fixture = SkillFixture::new();
    let text = fs::read_to_string(file).unwrap();
    fixture.write(&format!("workspace/.agents/skills/{name}/SKILL.md"), &text);
    let text = text.replace("\r\n", "\n");
    let (_, rest) = text.trim().split_once("---\n").unwrap();
    let (_, body) = rest.split_once("\n---\n").unwrap();
    let directory = fixture
        .workspace()
        .join(".agents/skills")
        .join(name)
        .canonicalize()
        .unwrap();
    let directory = directory.display().to_string();
    let filled = body
        .trim()
        .replace("$SKILL_DIR", &directory)
        .replace("${SKILL_DIR}", &directory)
        .replace("$PYTHON", "python3");
    let filled = filled.replace("${PYTHON}", "python3").replace("$$", "$");
    assert_eq!(fixture.body(name), filled, "{}", file.display());
}
