//! Tests that the picture of a session in the README matches the program.

use crate::sandbox::{bub, root};

#[test]
fn the_picture_in_the_readme_shows_a_real_session() {
    let path = root().join("docs/images/session.svg");
    let picture = bub_testkit::picture::render_session(&bub()).unwrap();
    assert!(picture.len() < 30_000, "{} bytes", picture.len());
    assert!(
        std::fs::read_to_string(&path).unwrap() == picture,
        "{} is out of date; `cargo xtask picture` writes:\n{picture}",
        path.display()
    );
}
