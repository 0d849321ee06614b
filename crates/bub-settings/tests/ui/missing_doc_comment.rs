use bub_settings::Settings;

/// Settings of the shop.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
struct ShopSettings {
    color: Option<String>,
}

fn main() {}
