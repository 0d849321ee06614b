//! The attribute `#[needs_fixtures]` for tests with data that is not in the repository.

use proc_macro::TokenStream;

/// Marks a test that reads the directory `BUB_FIXTURES`. Put it above `#[test]` or `#[tokio::test]`. With an argument, such
/// as `#[needs_fixtures(BUB_PYTHON_PACKAGES)]`, the variable has that name.
///
/// Without the variable, the test is reported as ignored. With it, the test runs, and missing data must fail it.
///
/// Rust's test harness cannot ignore a test when it runs, so this attribute decides when the test is compiled. The
/// expansion names the variable with `option_env!`, so that cargo compiles the tests again when the variable changes.
#[proc_macro_attribute]
#[expect(clippy::disallowed_methods, reason = "tests have no settings")]
pub fn needs_fixtures(options: TokenStream, test: TokenStream) -> TokenStream {
    let variable = match options.to_string() {
        name if name.is_empty() => "BUB_FIXTURES".to_owned(),
        name => name,
    };
    let mut code = format!("const _: Option<&str> = option_env!(\"{variable}\");");
    if !has_test_attribute(test.clone()) {
        code += "compile_error!(\"write #[needs_fixtures] above #[test] or #[tokio::test]\");";
    }
    if std::env::var_os(&variable).is_none() {
        code.extend(["#[ignore = \"", &variable, " is not set\"]"]);
    }
    let mut tokens: TokenStream = code.parse().unwrap_or_default();
    tokens.extend(test);
    tokens
}

/// Returns whether an attribute below this one makes the function a test. An attribute above is expanded first, and would
/// not see `#[ignore]`.
fn has_test_attribute(item: TokenStream) -> bool {
    let mut attributes = item.into_iter().filter_map(|token| match token {
        proc_macro::TokenTree::Group(group) => Some(group.to_string()),
        _ => None,
    });
    attributes.any(|group| {
        let name = group.trim_matches(['[', ']', ' ']);
        name == "test" || name.replace(' ', "").starts_with("tokio::test")
    })
}
