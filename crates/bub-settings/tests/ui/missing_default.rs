use bub_settings::Settings;

/// Settings of the shop.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
struct ShopSettings {
    /// The color of the shop.
    color: String,
}

fn main() {}
