//! Any response of a token endpoint or any token file gives tokens with an expiry, or a one-line
//! error.

use bub_codex::read_login;

/// The first byte selects the status of the response, or the file.
pub(crate) fn check(input: &[u8]) {
    let Some((first, body)) = input.split_first() else {
        return;
    };
    let status = [Some(200), None, Some(400), Some(500), Some(302)][usize::from(*first) % 5];
    match read_login(status, body, 1_700_000_000) {
        Ok(tokens) => assert!(tokens.is_none_or(|tokens| !tokens.access_token.expose().is_empty())),
        Err(why) => assert!(why.len() < 2000 && !why.contains('\n'), "{why}"),
    }
}
