//! Runs every seed of the fuzz targets through the checks of the fuzzer, as regression tests.

use std::fs;

/// Returns the root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[path = "../../../../fuzz/checks/codex_login.rs"]
mod codex_login;
#[path = "../../../../fuzz/checks/config_edit.rs"]
mod config_edit;
#[path = "../../../../fuzz/checks/image.rs"]
mod image;
#[path = "../../../../fuzz/checks/journal.rs"]
mod journal;
#[path = "../../../../fuzz/checks/markdown.rs"]
mod markdown;
#[path = "../../../../fuzz/checks/office_text.rs"]
mod office_text;
#[path = "../../../../fuzz/checks/plugin_line.rs"]
mod plugin_line;
#[path = "../../../../fuzz/checks/plugin_manifest.rs"]
mod plugin_manifest;
#[path = "../../../../fuzz/checks/search_text.rs"]
mod search_text;
#[path = "../../../../fuzz/checks/skill_file.rs"]
mod skill_file;
#[path = "../../../../fuzz/checks/tape_line.rs"]
mod tape_line;
#[path = "../../../../fuzz/checks/tape_query.rs"]
mod tape_query;
#[path = "../../../../fuzz/checks/telegram_html.rs"]
mod telegram_html;
#[path = "../../../../fuzz/checks/telegram_inbound.rs"]
mod telegram_inbound;
#[path = "../../../../fuzz/checks/web_page.rs"]
mod web_page;
#[path = "../../../../fuzz/checks/webhook_body.rs"]
mod webhook_body;
#[path = "../../../../fuzz/checks/wire_decode.rs"]
mod wire_decode;
#[path = "../../../../fuzz/checks/wire_sse.rs"]
mod wire_sse;

/// A fuzz target and its check.
type SeedCheck = (&'static str, fn(&[u8]));

const CHECKS: &[SeedCheck] = &[
    ("codex_login", codex_login::check),
    ("config_edit", config_edit::check),
    ("image", image::check),
    ("journal", journal::check),
    ("markdown", markdown::check),
    ("office_text", office_text::check),
    ("plugin_line", plugin_line::check),
    ("plugin_manifest", plugin_manifest::check),
    ("search_text", search_text::check),
    ("skill_file", skill_file::check),
    ("tape_line", tape_line::check),
    ("tape_query", tape_query::check),
    ("telegram_html", telegram_html::check),
    ("telegram_inbound", telegram_inbound::check),
    ("web_page", web_page::check),
    ("webhook_body", webhook_body::check),
    ("wire_decode", wire_decode::check),
    ("wire_sse", wire_sse::check),
];

fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("{ROOT}/fuzz/{directory}")).unwrap();
    let name = |path: std::path::PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap().path())).collect();
    names.sort();
    names
}

#[test]
fn every_fuzz_target_has_seeds_and_holds_for_them() {
    let check_names: Vec<&str> = CHECKS.iter().map(|(name, _)| *name).collect();
    for directory in ["checks", "fuzz_targets", "seeds"] {
        assert_eq!(names(directory), check_names, "fuzz/{directory}");
    }
    for (target, check) in CHECKS {
        let seeds = names(&format!("seeds/{target}"));
        assert!(!seeds.is_empty(), "{target} has no seeds");
        for seed in seeds {
            println!("{target}/{seed}");
            check(&fs::read(format!("{ROOT}/fuzz/seeds/{target}/{seed}")).unwrap());
        }
    }
}
