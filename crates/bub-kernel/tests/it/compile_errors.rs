//! The compiler errors for invalid hooks and tools.

#[test]
fn compile_errors_teach() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
