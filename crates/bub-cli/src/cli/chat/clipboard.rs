//! Reads an image from the clipboard of the desktop. Terminals paste only text, so a program of the desktop has to help.

use std::{io, process::Stdio, time::Duration};

use bub_kernel::{Error, MediaItem, MediaKind, Result};
use bub_settings::Settings;
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};

use crate::cli::run::input::MAX_ATTACHMENT_BYTES;

/// Programs that print the image in the clipboard as PNG: for Wayland, X11 and macOS.
const READERS: [(&str, &[&str]); 3] = [
    ("wl-paste", &["--no-newline", "--type", "image/png"]),
    (
        "xclip",
        &["-selection", "clipboard", "-t", "image/png", "-o"],
    ),
    ("pngpaste", &["-"]),
];
const READ_TIMEOUT: Duration = Duration::from_secs(5);
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Returns the image in the clipboard. Uses the first program that exists and finds one.
pub(super) async fn read_image(settings: &Settings) -> Result<MediaItem> {
    let mut has_reader = false;
    for (program, arguments) in READERS {
        let reading = run_reader(program, arguments, settings);
        match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(bytes)) if bytes.len() as u64 > MAX_ATTACHMENT_BYTES => {
                let max = MAX_ATTACHMENT_BYTES / (1024 * 1024);
                return Err(Error::invalid_input(format!(
                    "cannot attach the image in the clipboard: it is larger than {max} MB; attach it with `@PATH`"
                )));
            }
            Ok(Ok(bytes)) if bytes.starts_with(PNG_SIGNATURE) => {
                return Ok(MediaItem {
                    filename: Some("clipboard.png".to_owned()),
                    ..MediaItem::from_bytes(MediaKind::Image, "image/png", &bytes)
                });
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            _ => has_reader = true,
        }
    }
    Err(Error::invalid_input(if has_reader {
        "no image in the clipboard; copy one, or attach a file with `@PATH`"
    } else {
        "cannot read the clipboard: install `wl-paste` (Wayland), `xclip` (X11) or `pngpaste` (macOS), or attach a \
         file with `@PATH`"
    }))
}

/// Returns what a program prints, at most one byte more than an attachment may have.
async fn run_reader(program: &str, arguments: &[&str], settings: &Settings) -> io::Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(settings.child_environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut limited = stdout.take(MAX_ATTACHMENT_BYTES + 1);
        limited.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}
