use bub_settings::Settings;

/// Settings of the shop.
#[derive(Settings)]
#[settings(section = "shop", crate = bub_settings)]
struct ShopSettings {
    /// Number of shops.
    #[setting(default = "three")]
    count: u64,
}

fn main() {}
