//! Parses the redirect after the sign-in: extracts the code and checks the OAuth `state`.

use bub::model::short_message;

use crate::LoginError;

/// Returns the code in pasted text: the URL of the last page, its query string, or only the code.
///
/// A code alone has no OAuth `state` to check. It is accepted only here, because the user copied it manually from the
/// page that this attempt opened.
pub(crate) fn parse_pasted(pasted: &str, state: &str) -> Result<String, LoginError> {
    let pasted = pasted.trim();
    let is_code = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b"=&?#/".contains(&b))
    };
    if is_code(pasted) {
        return Ok(pasted.to_owned());
    }
    let query = pasted.split_once('?').map_or(pasted, |(_, query)| query);
    let query = query.split('#').next().unwrap_or(query);
    // Text without a code or an error is not a redirect, even if it has the right state: it may be the URL of the
    // sign-in page.
    if !form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "code" || name == "error")
    {
        return Err(LoginError::NoCode);
    }
    parse_query(query, state)
}

/// Checks that the OAuth `state` in a query string equals `state`, and returns the code in the query string.
pub(crate) fn parse_query(query: &str, state: &str) -> Result<String, LoginError> {
    let value = |key: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs
            .find(|(name, value)| name == key && !value.is_empty())
            .map(|(_, value)| value.into_owned())
    };
    if value("state").as_deref() != Some(state) {
        return Err(LoginError::StateMismatch);
    }
    if let Some(error) = value("error_description").or_else(|| value("error")) {
        return Err(LoginError::Refused(short_message(&error)));
    }
    value("code").ok_or(LoginError::NoCode)
}

#[cfg(test)]
mod tests {
    use super::*;

    // H-99, W-40: the pasted text has one of three forms; a missing state is a mismatch too.
    #[test]
    fn address_query_and_bare_code_are_understood_and_the_state_is_checked() {
        let good = [
            "http://localhost:1455/auth/callback?code=abc%2B1&state=s1",
            "?code=abc%2B1&state=s1",
            "code=abc%2B1&state=s1&scope=openid",
            "  state=s1&code=abc%2B1#fragment \n",
            "abc+1",
        ];
        for pasted in good {
            assert_eq!(parse_pasted(pasted, "s1").unwrap(), "abc+1", "{pasted}");
        }
        for pasted in [
            "?code=abc&state=other",
            "code=abc",
            "http://localhost/auth/callback?code=abc",
        ] {
            assert!(
                matches!(parse_pasted(pasted, "s1"), Err(LoginError::StateMismatch)),
                "{pasted}"
            );
        }
        let page =
            "https://auth.example/oauth/authorize?response_type=code&code_challenge=x&state=s1";
        for nothing in [
            "?state=s1",
            "",
            "I have signed in",
            "http://localhost:1455/auth/callback",
            page,
        ] {
            assert!(
                matches!(parse_pasted(nothing, "s1"), Err(LoginError::NoCode)),
                "{nothing}"
            );
        }
        let refused = parse_pasted("?error=access_denied&state=s1", "s1").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "sign-in refused: access_denied; run the command again and allow access"
        );
    }
}
