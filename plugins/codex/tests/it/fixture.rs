//! The fixture of `bub::model::testing` with the login of this plugin.

use std::sync::Arc;

use bub::model::fetch::Fetch;
pub(crate) use bub::model::testing::{ModelsFixture, header};
use bub::{core_sections, settings::Settings};
use bub_codex::settings::{CODEX_HOME, section};
use bub_codex::{CodexAuth, OAuthEndpoints};

pub(crate) fn codex_fixture() -> ModelsFixture {
    ModelsFixture::new(core_sections().chain([section()]), |settings, fetch| {
        Arc::new(open_login(settings, fetch))
    })
}

/// Returns the stored login, with the sign-in server of the tests.
pub(crate) fn stored_login(fixture: &ModelsFixture) -> CodexAuth {
    open_login(&fixture.settings(), fixture.network.clone())
}

fn open_login(settings: &Settings, fetch: Arc<dyn Fetch>) -> CodexAuth {
    let endpoints = OAuthEndpoints {
        callback_port: 0,
        ..OAuthEndpoints::with_issuer("http://issuer.test")
    };
    let (home, redactor) = (settings.get(&CODEX_HOME), settings.redactor().clone());
    CodexAuth::new(&home, endpoints, fetch, redactor)
}
