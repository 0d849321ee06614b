//! Skills of other people: the same verdict as the original's, and the same text.
//!
//! `BUB_FIXTURES` names the directory that holds `skills/manifest.jsonl`: for each file what the original says about it.
//! There are no differences for these files. In general there are a few, found by comparing the verdicts for 2,300 damaged
//! and constructed files, and all of them accept more: a byte order mark is skipped; a date, a time (`12:30`), `.inf`, `=` or `<<`
//! as a value is text; keys in `metadata` are text; tabs and the rarer line breaks may stand in text without quotes. When a
//! file ends with the closing `---`, its body is empty (the original takes the frontmatter for the body). Only two oddities
//! that the original accepts are refused: a lone `-` in `{k: -}` and an anchor on a key.

use std::{fs, path::Path};

use bub_agent::Skills;
use serde_json::Value;

use crate::skills::SkillFixture;

// H-136, H-137
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "where the fixtures are is no setting"
)]
fn every_fixture_gets_the_verdict_of_the_original() {
    let Some(root) = std::env::var_os("BUB_FIXTURES") else {
        eprintln!("skipped: set BUB_FIXTURES to the directory that holds skills/manifest.jsonl");
        return;
    };
    let root = Path::new(&root).join("skills");
    let manifest = fs::read_to_string(root.join("manifest.jsonl")).unwrap();
    let mut verdicts = [0, 0];
    for line in manifest.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let file = root.join(row["file"].as_str().unwrap());
        let directory = file.parent().unwrap();
        let accepted = row["verdict_bub_0.5.1"] == "accepted";
        verdicts[usize::from(accepted)] += 1;
        match Skills::check(directory) {
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
    assert!(verdicts[0] > 10 && verdicts[1] > 50, "{verdicts:?}");
}

/// The body is the rest of the file, which for these files has no placeholders but `$$`.
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
