//! Checks the table of providers in `docs/providers.md`.

use bub_model::{Catalog, Provider};

use super::fixture::models_fixture;

fn line(provider: &Provider) -> String {
    let code = |text: &str| format!("`{text}`");
    let names: Vec<_> = provider.names().map(code).collect();
    let variables: Vec<_> = provider
        .key_variables
        .iter()
        .map(|name| code(name))
        .collect();
    let base = match &provider.base_url {
        Some(base) => base.to_string(),
        None => format!("your own, in `{}`", provider.base_variable()),
    };
    let key = match variables.join(", ") {
        none if none.is_empty() => "none needed".to_owned(),
        key => key,
    };
    let model = provider.default_model.as_deref().map(code);
    let (names, model) = (names.join(", "), model.unwrap_or_default());
    format!("| {names} | {base} | {key} | {model} |\n")
}

#[test]
fn the_catalog_on_the_page_is_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/providers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let catalog = Catalog::new(&models_fixture().settings()).unwrap();
    let providers = catalog.iter().filter(|provider| !provider.is_plugin);
    let table: String = providers.map(line).collect();
    assert!(
        page.contains(&table),
        "docs/providers.md is out of date; it should contain:\n{table}"
    );
    assert!(
        page.lines().count() <= 160,
        "the page has more than 160 lines"
    );
}
