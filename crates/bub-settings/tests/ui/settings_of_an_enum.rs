use bub_settings::Settings;

/// The color of the shop.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
enum Color {
    Red,
}

fn main() {}
