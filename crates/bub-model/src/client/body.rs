//! Response bodies. A body is decompressed if a proxy compressed it although bub did not request compression.

use std::io::Write as _;

use bytes::{Buf as _, Bytes};
use flate2::write::{GzDecoder, ZlibDecoder};
use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;

use super::transport::body_error;
use crate::error::{ModelError, RecoveryAction, Result};

/// Number of compressed bytes that are decompressed at a time. It is small, because bytes can expand about a
/// thousandfold and the reader checks its limits only after each chunk.
const DECOMPRESS_CHUNK_BYTES: usize = 4096;

/// The body of a response, read in chunks.
pub struct ResponseBody {
    response: Response,
    encoding_decoder: ContentDecoder,
    /// Received bytes that are not decompressed yet.
    compressed: Bytes,
}

enum ContentDecoder {
    None,
    Gzip(GzDecoder<Vec<u8>>),
    Deflate(ZlibDecoder<Vec<u8>>),
}

impl ResponseBody {
    /// Creates the body of a response.
    ///
    /// # Errors
    ///
    /// Fails if the content encoding is not identity, gzip or deflate.
    pub fn new(response: Response) -> Result<Self> {
        let encoding = response
            .headers()
            .get(CONTENT_ENCODING)
            .map(|value| value.to_str().unwrap_or("?"));
        let encoding_decoder = match encoding
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
                    "the response is compressed as `{other}`, which bub does not support; configure the proxy not to compress responses"
                );
                let error = ModelError::malformed(message);
                return Err(error.with_action(RecoveryAction::NextModel));
            }
        };
        Ok(Self {
            response,
            encoding_decoder,
            compressed: Bytes::new(),
        })
    }

    /// Returns the next chunk, or `None` at the end of the body. A chunk may be empty.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        if self.compressed.is_empty() {
            let chunk = self
                .response
                .chunk()
                .await
                .map_err(|error| body_error(&error))?;
            match (chunk, &self.encoding_decoder) {
                (Some(chunk), ContentDecoder::None) => return Ok(Some(chunk)),
                (Some(chunk), _) => self.compressed = chunk,
                (None, _) => return Ok(None),
            }
        }
        let input = self
            .compressed
            .split_to(DECOMPRESS_CHUNK_BYTES.min(self.compressed.len()));
        self.encoding_decoder
            .decompress(input)
            .map(|bytes| Some(bytes.into()))
    }
}

impl ContentDecoder {
    fn decompress(&mut self, mut input: Bytes) -> Result<Vec<u8>> {
        let mut write = |bytes: &[u8]| match self {
            Self::None => Ok(0),
            Self::Gzip(decoder) => decoder.write(bytes),
            Self::Deflate(decoder) => decoder.write(bytes),
        };
        let corrupt_error = |_| {
            ModelError::malformed(
                "cannot decompress the response: the data is damaged; check the server or proxy that compresses it",
            )
        };
        // The decoder accepts no bytes after the end of the compressed data; ignore trailing bytes.
        while !input.is_empty() {
            match write(&input).map_err(corrupt_error)? {
                0 => break,
                written => input.advance(written),
            }
        }
        let flushed = match self {
            Self::None => Ok(&mut Vec::new()),
            Self::Gzip(decoder) => decoder.flush().map(|()| decoder.get_mut()),
            Self::Deflate(decoder) => decoder.flush().map(|()| decoder.get_mut()),
        };
        flushed.map(std::mem::take).map_err(corrupt_error)
    }
}
