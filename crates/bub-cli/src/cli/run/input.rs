//! What `bub run` reads: stdin and attached files.

use std::{
    io::Read as _,
    path::{Component, Path},
    time::Duration,
};

use bub::output::print_stderr;
use bub_kernel::{Error, Framework, MediaItem, MediaKind, Result};
use rustix::fs::FileType;

use crate::cli::parse_non_blank;

/// Maximum size of a message from stdin, in bytes.
const MAX_INPUT_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum size of an attached file, in bytes.
pub(in crate::cli) const MAX_ATTACHMENT_BYTES: u64 = 32 * 1024 * 1024;
/// How long bub waits for stdin before it says so.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Extensions of media types that providers know. Everything else is a document of an unknown type.
const MEDIA_TYPES: [(&str, &str); 20] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("ogg", "audio/ogg"),
    ("m4a", "audio/mp4"),
    ("mp4", "video/mp4"),
    ("pdf", "application/pdf"),
    ("json", "application/json"),
    ("txt", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("xml", "text/xml"),
    (
        "docx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ),
    (
        "xlsx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ),
    (
        "pptx",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ),
];

/// Reads the message from stdin.
pub(super) async fn read_message() -> Result<String> {
    let text = read_stdin().await?;
    parse_non_blank(&text).map_err(|_| {
        Error::invalid_input("no message: stdin is empty; pipe the message to `bub run -`")
    })
}

/// Reads text that is piped to the command. Returns `None` if stdin is neither a file nor a pipe, or has no text.
///
/// Other kinds, such as a socket, are left alone: a service manager may connect one that never ends.
pub(super) async fn read_piped_text(is_quiet: bool) -> Result<Option<String>> {
    let stat = rustix::fs::fstat(rustix::stdio::stdin());
    let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
    if !matches!(kind, Ok(FileType::RegularFile | FileType::Fifo)) {
        return Ok(None);
    }
    let reading = read_stdin();
    tokio::pin!(reading);
    let text = tokio::select! {
        text = &mut reading => text?,
        () = tokio::time::sleep(WAIT_NOTICE_DELAY) => {
            if !is_quiet {
                print_stderr("reading stdin until it ends; use `--no-stdin` to leave it alone\n");
            }
            reading.await?
        }
    };
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

async fn read_stdin() -> Result<String> {
    let reading = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        let mut stdin = std::io::stdin().lock().take(MAX_INPUT_BYTES + 1);
        stdin.read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = reading.await.map_err(Error::from)??;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Error::invalid_input(format!(
            "the message is too long: the maximum is {MAX_INPUT_BYTES} bytes; write it to a file and send its path"
        )));
    }
    String::from_utf8(bytes).map_err(|_| {
        Error::invalid_input(
            "cannot read the message: stdin is not valid UTF-8; pass text in UTF-8",
        )
    })
}

/// Reads a file to attach, unless it is in bub's home or a link in the workspace leads out of the workspace. With
/// `is_image`, fails if the name is not that of an image.
pub(in crate::cli) fn attach_file(
    framework: &Framework,
    path: &Path,
    is_image: bool,
) -> Result<MediaItem> {
    check_attachment(path, framework.settings().home(), framework.workspace())?;
    read_attachment(path, is_image)
}

/// Fails if a file to attach is in bub's home, or if a link in the workspace leads to it from there. A repository can
/// contain a link to any file, such as a key.
fn check_attachment(path: &Path, home: &Path, workspace: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default();
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = parent.unwrap_or(Path::new("."));
    // A path with `..` names the directory that it leads to.
    let directory = if directory
        .components()
        .any(|part| part == Component::ParentDir)
    {
        directory.canonicalize()
    } else {
        std::path::absolute(directory)
    };
    // Reading the file reports what does not exist.
    let (Ok(real), Ok(directory)) = (path.canonicalize(), directory) else {
        return Ok(());
    };
    let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (home, workspace) = (resolve(home), resolve(workspace));
    let named = [directory.join(name), resolve(&directory).join(name)];
    let is_named_inside = named.iter().any(|path| path.starts_with(&workspace));
    let shown = path.display();
    let reason = if real.starts_with(&home) {
        "it is in bub's home"
    } else if is_named_inside && !real.starts_with(&workspace) {
        "it is a link that leads out of the workspace; name the file itself"
    } else {
        return Ok(());
    };
    Err(Error::invalid_input(format!(
        "cannot attach {shown}: {reason}"
    )))
}

fn read_attachment(path: &Path, is_image: bool) -> Result<MediaItem> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    let known = MEDIA_TYPES.iter().find(|(name, _)| extension == *name);
    let mime = known.map_or("application/octet-stream", |(_, mime)| *mime);
    let kind = match mime.split_once('/') {
        Some(("image", _)) => MediaKind::Image,
        Some(("audio", _)) => MediaKind::Audio,
        Some(("video", _)) => MediaKind::Video,
        _ => MediaKind::Document,
    };
    let shown = path.display();
    if is_image && kind != MediaKind::Image {
        return Err(Error::invalid_input(format!(
            "not an image: {shown}; use a PNG, JPEG, GIF or WebP file, or `--file`"
        )));
    }
    let read_error =
        |error: std::io::Error| Error::invalid_input(format!("cannot read {shown}: {error}"));
    // A pipe or a device may never end.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(Error::invalid_input(format!(
            "cannot attach {shown}: it is not a regular file; name its path in the message instead"
        )));
    }
    let file = std::fs::File::open(path).map_err(read_error)?;
    let mut bytes = Vec::new();
    let mut limited = file.take(MAX_ATTACHMENT_BYTES + 1);
    limited.read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_ATTACHMENT_BYTES {
        let max = MAX_ATTACHMENT_BYTES / (1024 * 1024);
        return Err(Error::invalid_input(format!(
            "cannot attach {shown}: it is larger than {max} MB; name its path in the message instead"
        )));
    }
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    Ok(MediaItem {
        filename: name,
        ..MediaItem::from_bytes(kind, mime, &bytes)
    })
}
