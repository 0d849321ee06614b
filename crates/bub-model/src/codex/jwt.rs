//! What a JWT says about itself. Nothing is verified: the server does that, this is only to know
//! which account a token is for and when it ends.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

/// The account a token is for, if it is a JWT that names one.
pub(crate) fn account_id(token: &str) -> Option<String> {
    let claims = claims(token)?;
    let account = claims
        .get("https://api.openai.com/auth")?
        .get("chatgpt_account_id")?
        .as_str()?;
    Some(account.to_owned()).filter(|account| !account.is_empty())
}

/// When a token ends, if it is a JWT that says so.
pub(super) fn expiry(token: &str) -> Option<i64> {
    claims(token)?.get("exp")?.as_i64()
}

fn claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_header, claims, _signature, None) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next())
    else {
        return None;
    };
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?).ok()
}
