use bub_settings::Settings;

struct Color;

/// Settings of the shop.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
struct ShopSettings {
    /// The color of the shop.
    #[setting(default = Color)]
    color: Color,
}

fn main() {}
