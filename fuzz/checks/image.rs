//! Any bytes are read as an image in bounded space and without a panic, and what is sent is within the limits.

use bub_agent::fit_image;
use bub_model::MediaLimits;

pub(crate) fn check(input: &[u8]) {
    let limits = MediaLimits {
        image_formats: vec!["jpeg".to_owned(), "png".to_owned()],
        max_image_bytes: 2000,
        max_image_side: 40,
        ..MediaLimits::default()
    };
    if let Ok((mime, bytes)) = fit_image("image/png", input, &limits) {
        assert!(
            bytes.len() <= limits.max_image_bytes,
            "{} bytes",
            bytes.len()
        );
        assert!(mime == "image/jpeg" || mime == "image/png", "{mime}");
    }
}
