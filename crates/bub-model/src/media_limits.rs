//! Which images and recordings the APIs of models accept.

use crate::{Quirks, WireFormat};

/// The images and recordings that every model of a list accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaLimits {
    /// Image formats, such as `png`.
    pub image_formats: Vec<String>,
    /// Maximum bytes of an image.
    pub max_image_bytes: usize,
    /// Maximum width and height of an image in pixels.
    pub max_image_side: u32,
    /// Audio formats, such as `mp3`.
    pub audio_formats: Vec<String>,
    /// Whether videos are accepted.
    pub video: bool,
}

impl MediaLimits {
    /// Returns the limits of a provider that is called in a wire format.
    pub(crate) fn new(quirks: Quirks, wire: WireFormat) -> Self {
        let mut limits = Self::from(quirks);
        // These formats have no content part for it.
        if wire == WireFormat::Messages {
            limits.audio_formats.clear();
        }
        limits.video &= !matches!(wire, WireFormat::Messages | WireFormat::Responses);
        limits
    }

    /// Returns what both limits accept.
    pub(crate) fn intersection(mut self, other: &Self) -> Self {
        self.image_formats
            .retain(|format| other.image_formats.contains(format));
        self.audio_formats
            .retain(|format| other.audio_formats.contains(format));
        self.max_image_bytes = self.max_image_bytes.min(other.max_image_bytes);
        self.max_image_side = self.max_image_side.min(other.max_image_side);
        self.video &= other.video;
        self
    }
}

impl From<Quirks> for MediaLimits {
    fn from(quirks: Quirks) -> Self {
        Self {
            image_formats: quirks.image_formats,
            max_image_bytes: quirks.max_image_bytes,
            max_image_side: quirks.max_image_side,
            audio_formats: quirks.audio_formats,
            video: quirks.video,
        }
    }
}

/// The limits of a provider that the catalog says nothing about.
impl Default for MediaLimits {
    fn default() -> Self {
        Self::from(Quirks::default())
    }
}
