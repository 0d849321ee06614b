//! Images that users send: checked, and scaled and converted to what the model accepts.
//!
//! The file comes from a user, so the memory for its pixels is limited, and one image is decoded at a time.

use std::{borrow::Cow, io::Cursor};

use bub_model::MediaLimits;
use image::{
    DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, ImageResult, RgbImage, RgbaImage,
    codecs::{jpeg::JpegEncoder, png::PngEncoder},
    imageops,
};

/// Maximum memory for the pixels of an image, as they are in the file: about 60 megapixels with colors.
const MAX_DECODED_BYTES: u64 = 192 * 1024 * 1024;
/// Smallest width or height to which an image is scaled.
const MIN_SIDE: u32 = 64;
/// Quality of images that are written as JPEG.
const JPEG_QUALITY: u8 = 85;

/// Returns the MIME type and the content of an image that a model accepts: the file itself if possible, otherwise a
/// smaller image, or one in another format. The error is the reason why the model cannot get the image.
///
/// # Errors
///
/// Fails if the format is unknown, if the file is damaged or too large, or if the model accepts no images.
pub fn fit_image<'a>(
    declared_mime: &str,
    bytes: &'a [u8],
    limits: &MediaLimits,
) -> Result<(String, Cow<'a, [u8]>), String> {
    let accepts = |name: &str| limits.image_formats.iter().any(|format| format == name);
    if limits.image_formats.is_empty() {
        return Err("the API of this model accepts no images".to_owned());
    }
    let format = image::guess_format(bytes).ok();
    let format = format.filter(ImageFormat::reading_enabled);
    let declared = declared_mime.strip_prefix("image/").unwrap_or_default();
    let Some(format) = format else {
        let known = ImageFormat::from_mime_type(declared_mime);
        if known.is_some_and(|known| known.reading_enabled()) {
            return Err(format!("damaged image: the content is not {declared}"));
        }
        // Some models read formats that bub does not.
        if accepts(declared) && bytes.len() <= limits.max_image_bytes {
            return Ok((declared_mime.to_owned(), Cow::Borrowed(bytes)));
        }
        return Err(format!(
            "unsupported image format {declared_mime}: send JPEG, PNG, GIF or WebP"
        ));
    };
    let image = decode(bytes, format)?;
    let mime = format.to_mime_type();
    let is_accepted = accepts(mime.trim_start_matches("image/"));
    let has_size = image.width().max(image.height()) <= limits.max_image_side;
    if is_accepted && has_size && bytes.len() <= limits.max_image_bytes {
        return Ok((mime.to_owned(), Cow::Borrowed(bytes)));
    }
    // Sharp edges, as in screenshots, suffer from JPEG.
    let is_photo = (format == ImageFormat::Jpeg && accepts("jpeg")) || !accepts("png");
    let (mime, bytes) = shrink(&image.into_rgba8(), is_photo, limits)?;
    Ok((mime.to_owned(), Cow::Owned(bytes)))
}

/// Decodes an image, the first one of an animation, and turns it upright.
fn decode(bytes: &[u8], format: ImageFormat) -> Result<DynamicImage, String> {
    let damaged = |error| format!("damaged image: {error}");
    let reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    if decoder.total_bytes() > MAX_DECODED_BYTES {
        let (width, height) = decoder.dimensions();
        return Err(format!(
            "the image has too many pixels: {width} x {height}; send a smaller one"
        ));
    }
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// Scales an image down until its file has an accepted size. Returns the MIME type and the file.
fn shrink(
    image: &RgbaImage,
    is_photo: bool,
    limits: &MediaLimits,
) -> Result<(&'static str, Vec<u8>), String> {
    let accepts_jpeg = limits.image_formats.iter().any(|format| format == "jpeg");
    let longest = image.width().max(image.height());
    let mut side = limits.max_image_side.min(longest);
    while side >= MIN_SIDE.min(longest) {
        let scaled = if side < longest {
            let scale = |length: u32| {
                let scaled = u64::from(length) * u64::from(side) / u64::from(longest);
                u32::try_from(scaled).unwrap_or(side).max(1)
            };
            Cow::Owned(imageops::thumbnail(
                image,
                scale(image.width()),
                scale(image.height()),
            ))
        } else {
            Cow::Borrowed(image)
        };
        if !is_photo {
            let png = encode_png(&scaled).map_err(|error| error.to_string())?;
            if png.len() <= limits.max_image_bytes {
                return Ok(("image/png", png));
            }
        }
        if accepts_jpeg {
            let jpeg = encode_jpeg(&scaled).map_err(|error| error.to_string())?;
            if jpeg.len() <= limits.max_image_bytes {
                return Ok(("image/jpeg", jpeg));
            }
        }
        side = side * 3 / 4;
    }
    Err("the image cannot be made small enough for the API of this model".to_owned())
}

fn encode_png(image: &RgbaImage) -> ImageResult<Vec<u8>> {
    let mut file = Vec::new();
    image.write_with_encoder(PngEncoder::new(&mut file))?;
    Ok(file)
}

/// Encodes an image as JPEG, on white where it is transparent.
fn encode_jpeg(image: &RgbaImage) -> ImageResult<Vec<u8>> {
    let on_white = |color: u8, alpha: u8| {
        let (color, alpha) = (u16::from(color), u16::from(alpha));
        u8::try_from((color * alpha + 255 * (255 - alpha)) / 255).unwrap_or(u8::MAX)
    };
    let mut opaque = RgbImage::new(image.width(), image.height());
    for (target, source) in opaque.pixels_mut().zip(image.pixels()) {
        let [red, green, blue, alpha] = source.0;
        target.0 = [red, green, blue].map(|color| on_white(color, alpha));
    }
    let mut file = Vec::new();
    JpegEncoder::new_with_quality(&mut file, JPEG_QUALITY).encode_image(&opaque)?;
    Ok(file)
}
