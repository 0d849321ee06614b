//! The fixture of `bub_settings::testing` with the sample settings.

pub(crate) use bub_settings::testing::SettingsFixture;

use crate::sample;

pub(crate) fn settings_fixture() -> SettingsFixture {
    SettingsFixture::new(sample::sections())
}
