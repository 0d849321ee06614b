//! Any answer of a token endpoint, and any file that tokens are kept in: tokens with an end, or one line that says why not.

use bub_model::codex::read_login;

/// The first byte picks the status of the answer, or the file.
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
