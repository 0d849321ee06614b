//! What a plugin author is told when a hook is written wrongly.

#[test]
fn compile_errors_teach() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
