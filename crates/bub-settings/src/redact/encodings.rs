//! Encoded forms of a secret.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Minimum length of a base64 form. Shorter forms would match ordinary text.
const MIN_BASE64_BYTES: usize = 8;

/// Length of a fragment. Encoders break lines, so each fragment of a long form is masked as well.
const FRAGMENT_BYTES: usize = 24;
/// Distance between the starts of fragments. Up to this number of characters can stay visible at
/// the ends of a line.
const FRAGMENT_STRIDE: usize = 8;
/// Maximum length of a form that is split into fragments. Longer forms would need too much memory.
const MAX_FRAGMENTED_BYTES: usize = 2_048;

/// Returns the fragments of an encoded secret that may occur on a separate line.
pub(super) fn form_fragments(secret: &str) -> BTreeSet<Vec<u8>> {
    let encoded = base64_forms(secret.as_bytes()).chain(hex_forms(secret.as_bytes()));
    let long =
        encoded.filter(|form| (2 * FRAGMENT_BYTES..=MAX_FRAGMENTED_BYTES).contains(&form.len()));
    long.flat_map(|form| {
        form.windows(FRAGMENT_BYTES)
            .step_by(FRAGMENT_STRIDE)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    })
    .collect()
}

/// Returns the secret as it is and as encoded in URLs, JSON, debug output, base64 and hex dumps.
pub(super) fn encoded_forms(secret: &str) -> BTreeSet<Vec<u8>> {
    let mut texts = BTreeSet::from([secret.to_owned(), secret.trim().to_owned()]);
    // Log lines end at a newline, so register each line of a multi-line secret (a PEM key).
    texts.extend(secret.lines().map(|line| line.trim().to_owned()));
    let mut forms: BTreeSet<Vec<u8>> = BTreeSet::new();
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

/// Returns percent-encoded forms, which differ in the unescaped characters and in the case of
/// digits.
fn url_forms(text: &str) -> impl Iterator<Item = String> + '_ {
    let sets: [(&[u8], bool); 5] = [
        (b"-_.~", false),
        (b"-_.~!*'()", false),
        (b"-_.*", true),
        (b"-_.~/:@", false),
        (b"", false),
    ];
    sets.into_iter().flat_map(move |(keep, plus)| {
        let upper = percent_encode_except(text, keep, plus);
        [lowercase_escapes(&upper), upper]
    })
}

/// Percent-encodes all characters except unreserved ones.
#[cfg(test)]
pub(super) fn percent_encode(text: &str) -> String {
    percent_encode_except(text, b"-_.~", false)
}

fn percent_encode_except(text: &str, keep: &[u8], plus: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' if plus => encoded.push('+'),
            _ if byte.is_ascii_alphanumeric() || keep.contains(&byte) => {
                encoded.push(char::from(byte));
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Converts escapes such as `%2F` to `%2f` and keeps other letters.
fn lowercase_escapes(encoded: &str) -> String {
    let mut digits_left = 0;
    let lower = |c: char| match (c, digits_left) {
        ('%', _) => {
            digits_left = 2;
            c
        }
        (_, 0) => c,
        _ => {
            digits_left -= 1;
            c.to_ascii_lowercase()
        }
    };
    encoded.chars().map(lower).collect()
}

/// Returns JSON (plain and nested), ASCII-only JSON, JSON with `\/`, and Rust's `{:?}`.
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
    quoted
        .get(1..quoted.len().saturating_sub(1))
        .unwrap_or(text)
        .to_owned()
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
    [
        concat_bytes(secret, |byte| format!("{byte:02x}")),
        concat_bytes(secret, |byte| format!("{byte:02X}")),
    ]
}

/// Returns the bytes as hex digits with separators, as in dumps, URLs and shells.
fn separated_hex_forms(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let marks = [("", " "), ("", ":"), ("%", ""), ("\\x", ""), ("\\u00", "")];
    marks.into_iter().flat_map(|(before, behind)| {
        let lower = |byte: u8| format!("{before}{byte:02x}{behind}");
        let upper = |byte: u8| format!("{before}{byte:02X}{behind}");
        let forms = [concat_bytes(secret, lower), concat_bytes(secret, upper)];
        forms.map(|form| {
            form.strip_suffix(behind.as_bytes())
                .map(<[u8]>::to_vec)
                .unwrap_or(form)
        })
    })
}

fn concat_bytes(secret: &[u8], spell: impl Fn(u8) -> String) -> Vec<u8> {
    secret
        .iter()
        .flat_map(|byte| spell(*byte).into_bytes())
        .collect()
}

/// Returns the base64 forms of the secret at each alignment. `user:secret` in a basic authorization
/// header shifts it by any number of bytes.
fn base64_forms(secret: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let alphabets = [(b'+', b'/'), (b'-', b'_')];
    let ends = [false, true];
    let cores = (0..3).flat_map(move |shift| {
        alphabets
            .into_iter()
            .flat_map(move |last| ends.map(|end| base64_core(secret, shift, end, last)))
    });
    cores.filter(|core| core.len() >= MIN_BASE64_BYTES)
}

/// Returns the base64 characters that depend only on the secret, if it begins `shift` bytes into a
/// group. With `end`, the data ends with the secret, and its last, half-filled character is
/// included.
fn base64_core(secret: &[u8], shift: usize, end: bool, last: (u8, u8)) -> Vec<u8> {
    let bit = |index: usize| -> Option<u8> {
        let index = index.checked_sub(shift * 8)?;
        let byte = secret
            .get(index / 8)
            .copied()
            .or_else(|| end.then_some(0))?;
        Some((byte >> (7 - index % 8)) & 1)
    };
    let groups = ((shift + secret.len()) * 8).div_ceil(6);
    let sextet = |group: usize| {
        (group * 6..group * 6 + 6).try_fold(0u8, |bits, index| Some(bits << 1 | bit(index)?))
    };
    (0..groups)
        .filter_map(sextet)
        .map(|sextet| base64_char(sextet, last))
        .collect()
}

fn base64_char(sextet: u8, (plus, slash): (u8, u8)) -> u8 {
    match sextet {
        0..26 => b'A' + sextet,
        26..52 => b'a' + sextet - 26,
        52..62 => b'0' + sextet - 52,
        62 => plus,
        _ => slash,
    }
}
