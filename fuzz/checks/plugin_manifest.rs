//! A manifest of any text is rejected with a reason, or its names and texts are safe.

use bub_plugin::Manifest;

pub(crate) fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let manifest = match Manifest::parse(&text) {
        Ok(manifest) => manifest,
        Err(why) => return assert!(!why.is_empty()),
    };
    let is_plain = |name: &String| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let settings = manifest.settings.iter().map(|setting| &setting.name);
    assert!(
        settings
            .chain(&manifest.env)
            .chain([&manifest.name])
            .all(is_plain),
        "{manifest:?}"
    );
    assert!(!manifest.command.is_empty());
    let _ = manifest.settings_section(true);
    let json = serde_json::to_string(&manifest).expect("it can be written down");
    assert_eq!(Manifest::parse(&json), Ok(manifest), "{json}");
}
