//! Checks the table of providers in `docs/providers.md`.

use bub_model::PROVIDER_ROWS;

fn line(row: &bub_model::ProviderRow) -> String {
    let or = |text: String, none: &str| {
        if text.is_empty() {
            none.to_owned()
        } else {
            text
        }
    };
    let code = |text: &str| format!("`{text}`");
    let names: Vec<_> = [row.name]
        .iter()
        .chain(row.aliases)
        .map(|name| code(name))
        .collect();
    let variables: Vec<_> = row.key_variables.iter().map(|name| code(name)).collect();
    let base = if row.base_url.is_empty() {
        format!("your own, in `{}`", row.base_variable)
    } else {
        row.base_url.to_owned()
    };
    let model = if row.default_model.is_empty() {
        String::new()
    } else {
        code(row.default_model)
    };
    let (names, key) = (names.join(", "), or(variables.join(", "), "none needed"));
    format!("| {names} | {base} | {key} | {model} |\n")
}

#[test]
fn the_catalog_on_the_page_is_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/providers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table: String = PROVIDER_ROWS.iter().map(line).collect();
    assert!(
        page.contains(&table),
        "docs/providers.md is out of date; it should contain:\n{table}"
    );
    assert!(
        page.lines().count() <= 160,
        "the page has more than 160 lines"
    );
}
