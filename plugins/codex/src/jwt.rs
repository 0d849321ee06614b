//! Claims of a JWT: the account and the expiry time.
//!
//! Signatures are not verified; the server does that.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// Returns the account of a token, if the token is a JWT that names one.
pub(crate) fn account_id(token: &str) -> Option<String> {
    let claims = parse_claims(token)?;
    let account = claims
        .get("https://api.openai.com/auth")?
        .get("chatgpt_account_id")?
        .as_str()?;
    Some(account.to_owned()).filter(|account| !account.is_empty())
}

/// Returns the expiry time of a token in seconds since the Unix epoch, if the token is a JWT that contains it.
pub(crate) fn expiry(token: &str) -> Option<i64> {
    parse_claims(token)?.get("exp")?.as_i64()
}

fn parse_claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_header, claims, _signature, None) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?).ok()
}
