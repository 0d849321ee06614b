use bub_settings::SettingChoice;

/// The color of the shop.
#[derive(Clone, Copy, PartialEq, SettingChoice)]
#[settings(crate = bub_settings)]
enum Color {
    Red,
    Gray(u8),
}

fn main() {}
