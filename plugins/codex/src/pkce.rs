//! Proof key for code exchange (RFC 7636), method S256.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bub::Secret;
use sha2::{Digest, Sha256};

/// The secrets of one login attempt.
pub(crate) struct Pkce {
    /// Secret that bub sends when it exchanges the code for tokens.
    pub(crate) verifier: Secret,
    /// Hash of the verifier, sent in the sign-in URL.
    pub(crate) challenge: String,
    /// Random text in the sign-in URL that comes back with the code. It proves that the code belongs to this attempt.
    pub(crate) state: String,
}

impl Pkce {
    pub(crate) fn new() -> Result<Self, String> {
        let verifier = URL_SAFE_NO_PAD.encode(random_bytes::<32>()?);
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let state = format!("{:032x}", u128::from_be_bytes(random_bytes()?));
        Ok(Self {
            verifier: Secret::from(verifier),
            challenge,
            state,
        })
    }
}

fn random_bytes<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| format!("cannot generate random numbers: {error}"))?;
    Ok(bytes)
}
