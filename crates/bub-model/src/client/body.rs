//! The bytes of an answer, unpacked where a proxy has compressed them although nobody asked for it.

use std::io::Write as _;

use bytes::{Buf as _, Bytes};
use flate2::write::{GzDecoder, ZlibDecoder};
use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;

use super::transport::broken;
use crate::error::{ModelError, ModelErrorKind, RecoveryAction};

/// Packed bytes that are unpacked at a time: they become at most a thousand times as many, and the limits of
/// whoever reads them are checked after each.
const DECOMPRESS_CHUNK_BYTES: usize = 4096;

/// The body of an answer, chunk by chunk.
pub struct ResponseBody {
    response: Response,
    packing: ContentDecoder,
    /// Packed bytes that have come and are not unpacked yet.
    packed: Bytes,
}

enum ContentDecoder {
    None,
    Gzip(GzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl ResponseBody {
    /// The body of an answer; an error if it is packed in a way that is not known.
    pub fn new(response: Response) -> Result<Self, ModelError> {
        let encoding = response
            .headers()
            .get(CONTENT_ENCODING)
            .map(|value| value.to_str().unwrap_or("?"));
        let packing = match encoding
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase()
            .as_str()
        {
            "" | "identity" => ContentDecoder::None,
            "gzip" | "x-gzip" => ContentDecoder::Gzip(GzDecoder::new(Vec::new())),
            "deflate" => ContentDecoder::Deflate(ZlibDecoder::new(Vec::new())),
            other => {
                let message = format!(
                    "the answer is compressed as `{other}`, which was not asked for: a proxy in between must not do that"
                );
                return Err(ModelError::new(
                    ModelErrorKind::Malformed,
                    RecoveryAction::NextModel,
                    message,
                ));
            }
        };
        Ok(Self {
            response,
            packing,
            packed: Bytes::new(),
        })
    }

    /// More of the body; nothing when it has ended. A chunk may be empty.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ModelError> {
        if self.packed.is_empty() {
            let came = self
                .response
                .chunk()
                .await
                .map_err(|error| broken(&error))?;
            let (Some(came), packed) = (came, !matches!(self.packing, ContentDecoder::None)) else {
                return Ok(None);
            };
            if !packed {
                return Ok(Some(came));
            }
            self.packed = came;
        }
        let bite = self
            .packed
            .split_to(DECOMPRESS_CHUNK_BYTES.min(self.packed.len()));
        self.packing.unpack(bite).map(|bytes| Some(bytes.into()))
    }
}

impl ContentDecoder {
    fn unpack(&mut self, mut bite: Bytes) -> Result<Vec<u8>, ModelError> {
        let mut step = |bytes: &[u8]| match self {
            Self::None => Ok(0),
            Self::Gzip(decoder) => decoder.write(bytes),
            Self::Deflate(decoder) => decoder.write(bytes),
        };
        let damaged = |_| ModelError::malformed("the answer is compressed and damaged");
        // Nothing is taken any more once the packed text has ended; what follows it means nothing.
        while !bite.is_empty() {
            match step(&bite).map_err(damaged)? {
                0 => break,
                taken => bite.advance(taken),
            }
        }
        match self {
            Self::None => Ok(Vec::new()),
            Self::Gzip(decoder) => {
                decoder.flush().map_err(damaged)?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Deflate(decoder) => {
                decoder.flush().map_err(damaged)?;
                Ok(std::mem::take(decoder.get_mut()))
            }
        }
    }
}
