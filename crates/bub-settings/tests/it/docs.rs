//! The user page says what the declarations say.

use crate::given::Given;

#[test]
fn the_configuration_page_names_every_setting_and_every_trusted_one() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (rules, table) = page.split_once("## Settings").unwrap();
    let workspace = rules
        .split("## ")
        .find(|part| part.starts_with("The `.env`"))
        .unwrap();
    for entry in Given::new().load().entries() {
        let (key, variable) = (entry.setting.key(), entry.setting.variable());
        let named = table.contains(&format!("`{key}`")) || table.contains(&format!("`{variable}`"));
        assert!(named, "{key} is missing");
        assert_eq!(
            workspace.contains(&format!("`{key}`")),
            entry.setting.is_trusted(),
            "{key}"
        );
    }
}
