//! A page of any bytes under several headers gives text of a bounded length, or none.

use bub_fetch::page_text;

const HEADERS: [&str; 8] = [
    "text/html",
    "",
    "text/plain",
    "text/html; charset=utf-16",
    "text/html; charset=windows-1252",
    "application/xhtml+xml; charset=\"utf-8\"",
    "text/html; charset=shift_jis",
    "application/json",
];

/// The first byte selects the header.
pub(crate) fn check(input: &[u8]) {
    let Some((first, page)) = input.split_first() else {
        return;
    };
    let base = "https://example.org/a/b?c#d".parse().expect("an address");
    let header = HEADERS[usize::from(*first) % HEADERS.len()];
    let Some(text) = page_text(header, page, &base) else {
        return;
    };
    // The largest expansion is a line break in deep lists, or a link to a URL of this length.
    assert!(
        text.len() <= 100 * page.len() + 100,
        "{} bytes became {}",
        page.len(),
        text.len()
    );
    assert_eq!(
        page_text(header, page, &base),
        Some(text),
        "the same every time"
    );
}
