use bub_settings::Settings;

/// Settings of the shop.
#[derive(Settings)]
#[settings(crate = bub_settings)]
struct ShopSettings {
    /// The color of the shop.
    color: Option<String>,
}

fn main() {}
