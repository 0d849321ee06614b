//! Encoded forms of a secret.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::is_secret;

/// Minimum length of a base64 form. Shorter forms would match ordinary text.
const MIN_BASE64_BYTES: usize = 8;

/// Length of a fragment: a part of a long encoded secret that is masked on its own, because
/// encoders may break the secret into lines.
const FRAGMENT_BYTES: usize = 24;
/// Distance in bytes between the starts of two successive fragments. Up to this number of
/// characters can stay visible at each end of a line.
const FRAGMENT_STRIDE: usize = 8;
/// Maximum length of an encoded secret that is split into fragments. Longer ones would need too
/// much memory.
const MAX_FRAGMENTED_BYTES: usize = 2_048;

/// Returns the fragments of the base64 and hexadecimal forms of a secret. Each fragment may occur
/// on a separate line.
fn form_fragments(secret: &str) -> BTreeSet<Vec<u8>> {
    let encoded = base64_forms(secret.as_bytes()).chain(hex_forms(secret.as_bytes()));
    let long =
        encoded.filter(|form| (2 * FRAGMENT_BYTES..=MAX_FRAGMENTED_BYTES).contains(&form.len()));
    let mut fragments = BTreeSet::new();
    for form in long {
        let windows = form.windows(FRAGMENT_BYTES).step_by(FRAGMENT_STRIDE);
        fragments.extend(windows.map(<[u8]>::to_vec));
    }
    fragments
}

/// Returns the secret as it is and as encoded in URLs, JSON, debug output, base64 and hex dumps, and
/// fragments of long encoded forms.
pub(super) fn encoded_forms(secret: &str) -> BTreeSet<Vec<u8>> {
    let mut texts = BTreeSet::from([secret.to_owned(), secret.trim().to_owned()]);
    // Log lines end at a newline, so register each line of a multi-line secret (a PEM key).
    let lines = secret.lines().map(str::trim).filter(|line| is_secret(line));
    texts.extend(lines.map(str::to_owned));
    let mut forms = form_fragments(secret);
    for text in &texts {
        forms.extend(url_forms(text).map(String::into_bytes));
        forms.extend(escaped_forms(text).map(String::into_bytes));
        forms.extend(base64_forms(text.as_bytes()));
        forms.extend(hex_forms(text.as_bytes()));
        forms.extend(separated_hex_forms(text.as_bytes()));
    }
    forms.extend(texts.into_iter().map(String::into_bytes));
    forms
}

/// Returns percent-encoded forms, which differ in the unescaped characters and in the case of the
/// hexadecimal digits.
fn url_forms(text: &str) -> impl Iterator<Item = String> + '_ {
    let sets: [(&[u8], bool); 5] = [
        (b"-_.~", false),
        (b"-_.~!*'()", false),
        (b"-_.*", true),
        (b"-_.~/:@", false),
        (b"", false),
    ];
    sets.into_iter().flat_map(move |(keep, plus)| {
        [true, false].map(|upper| percent_encode_except(text, keep, plus, upper))
    })
}

/// Percent-encodes all characters except unreserved ones.
#[cfg(test)]
pub(super) fn percent_encode(text: &str) -> String {
    percent_encode_except(text, b"-_.~", false, true)
}

fn percent_encode_except(text: &str, keep: &[u8], plus: bool, upper: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' if plus => encoded.push('+'),
            _ if byte.is_ascii_alphanumeric() || keep.contains(&byte) => {
                encoded.push(char::from(byte));
            }
            _ if upper => drop(write!(encoded, "%{byte:02X}")),
            _ => drop(write!(encoded, "%{byte:02x}")),
        }
    }
    encoded
}

/// Returns the text as escaped in JSON (once and twice), in ASCII-only JSON, in JSON with `\/`, and
/// in Rust's `{:?}`.
fn escaped_forms(text: &str) -> impl Iterator<Item = String> {
    let json = json_escape(text);
    let ascii = json_to_ascii(&json);
    [
        json_escape(&json),
        json.replace('/', "\\/"),
        text.escape_debug().to_string(),
        ascii,
        json,
    ]
    .into_iter()
}

fn json_escape(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    let unquoted = quoted.get(1..quoted.len().saturating_sub(1));
    unquoted.unwrap_or(text).to_owned()
}

fn json_to_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

/// Returns the bytes as pairs of hex digits.
fn hex_forms(secret: &[u8]) -> [Vec<u8>; 2] {
    hex_digits(secret).map(|pairs| pairs.concat().into_bytes())
}

/// Returns the bytes as hex digits with separators, as in dumps, URLs and shells.
fn separated_hex_forms(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let digits = hex_digits(secret);
    let marks = [("", " "), ("", ":"), ("%", ""), ("\\x", ""), ("\\u00", "")];
    marks.into_iter().flat_map(move |(before, between)| {
        let separator = format!("{between}{before}");
        let form = |pairs: &Vec<String>| format!("{before}{}", pairs.join(&separator)).into_bytes();
        digits.each_ref().map(form)
    })
}

/// Returns each byte as two hex digits, in lower and in upper case.
fn hex_digits(secret: &[u8]) -> [Vec<String>; 2] {
    let lower = secret.iter().map(|byte| format!("{byte:02x}"));
    let upper = secret.iter().map(|byte| format!("{byte:02X}"));
    [lower.collect(), upper.collect()]
}

/// Returns the base64 forms of the secret at each of the three alignments. Base64 encodes groups of
/// three bytes. Text before the secret, such as `user:` in a basic authorization header, shifts the
/// secret within a group.
fn base64_forms(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let forms = (0..3).flat_map(move |shift| {
        let shifted = [&vec![0; shift], secret].concat();
        [STANDARD_NO_PAD, URL_SAFE_NO_PAD]
            .into_iter()
            .flat_map(move |alphabet| {
                let encoded = alphabet.encode(&shifted).into_bytes();
                // Only the secret determines the characters in this range. If no data follows the
                // secret, it also determines the rest.
                let (start, end) = ((shift * 8).div_ceil(6), shifted.len() * 8 / 6);
                [encoded.get(start..end), encoded.get(start..)]
                    .map(|form| form.unwrap_or_default().to_vec())
            })
    });
    forms.filter(|form| form.len() >= MIN_BASE64_BYTES)
}
