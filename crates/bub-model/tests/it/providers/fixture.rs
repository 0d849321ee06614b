//! The fixture of `bub_model::testing` with the settings of this crate and the login of the tests.

pub(crate) use bub_model::testing::{ModelsFixture, header};

use super::login::FakeLogin;

pub(crate) fn models_fixture() -> ModelsFixture {
    ModelsFixture::new(bub_model::settings::sections(), FakeLogin::open)
}
