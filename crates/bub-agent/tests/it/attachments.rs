//! Files that users attach to messages.

use std::{
    io::{Cursor, Write as _},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use base64::Engine as _;
use bub_agent::{BuiltinAgent, BuiltinOptions, fit_image, office_text, shell::Launcher};
use bub_kernel::{
    BoxFuture, ChannelMessage, Framework, MediaFetcher, MediaItem, MediaKind, Prompt, Result,
};
use bub_model::MediaLimits;
use bub_testkit::model::{ModelServer, Reply};
use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};
use serde_json::{Value, json};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    harness::{AgentFixture, load_settings},
    shell::supervised_program,
};

struct FakeFetcher(Vec<u8>);

impl MediaFetcher for FakeFetcher {
    fn fetch(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>>> {
        Box::pin(std::future::ready(Ok(Some(self.0.clone()))))
    }
}

fn file(kind: MediaKind, mime: &str, name: &str, bytes: &[u8]) -> MediaItem {
    let mut item = MediaItem::from_fetcher(kind, mime, Arc::new(FakeFetcher(bytes.to_vec())));
    item.filename = Some(name.to_owned());
    item
}

/// Returns a zip archive with these parts.
fn archive(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in parts {
        writer
            .start_file(*name, SimpleFileOptions::default())
            .unwrap();
        writer.write_all(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Returns an image with colors that do not compress well.
fn noise(width: u32, height: u32) -> RgbaImage {
    let mut number = 1_u32;
    RgbaImage::from_fn(width, height, |_, _| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [_, red, green, blue] = number.to_le_bytes();
        Rgba([red, green, blue, 255])
    })
}

fn encoded(image: &RgbaImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image = DynamicImage::from(image.clone());
    let image = match format {
        ImageFormat::Jpeg => image.into_rgb8().into(),
        _ => image,
    };
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn png(width: u32, height: u32) -> Vec<u8> {
    encoded(&noise(width, height), ImageFormat::Png)
}

fn limits(formats: &[&str], max_image_bytes: usize, max_image_side: u32) -> MediaLimits {
    MediaLimits {
        image_formats: formats.iter().map(|&name| name.to_owned()).collect(),
        max_image_bytes,
        max_image_side,
        ..MediaLimits::default()
    }
}

#[test]
fn an_image_within_the_limits_is_sent_unchanged() {
    let all = limits(&["jpeg", "png", "gif", "webp"], 100_000, 100);
    for format in [
        ImageFormat::Jpeg,
        ImageFormat::Png,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ] {
        let bytes = encoded(&noise(100, 20), format);
        let (mime, sent) = fit_image("image/x-wrong", &bytes, &all).unwrap();
        assert_eq!((mime.as_str(), &*sent), (format.to_mime_type(), &*bytes));
    }
    // A format that only the model can read.
    let heic = limits(&["jpeg", "heic"], 10, 100);
    let (mime, sent) = fit_image("image/heic", b"0123456789", &heic).unwrap();
    assert_eq!((mime.as_str(), &*sent), ("image/heic", &b"0123456789"[..]));
    assert!(fit_image("image/heic", b"0123456789+", &heic).is_err());
}

#[test]
fn an_image_is_scaled_and_converted_to_the_limits() {
    for (format, limits, mime, size) in [
        // Pixels.
        (
            ImageFormat::Png,
            limits(&["jpeg", "png"], 1_000_000, 100),
            "image/png",
            (100, 50),
        ),
        (
            ImageFormat::Jpeg,
            limits(&["jpeg", "png"], 1_000_000, 100),
            "image/jpeg",
            (100, 50),
        ),
        // Formats.
        (
            ImageFormat::WebP,
            limits(&["jpeg", "png"], 1_000_000, 400),
            "image/png",
            (400, 200),
        ),
        (
            ImageFormat::Gif,
            limits(&["jpeg"], 1_000_000, 400),
            "image/jpeg",
            (400, 200),
        ),
        (
            ImageFormat::Jpeg,
            limits(&["png"], 1_000_000, 400),
            "image/png",
            (400, 200),
        ),
        // Bytes: as JPEG, then smaller.
        (
            ImageFormat::Png,
            limits(&["jpeg", "png"], 160_000, 400),
            "image/jpeg",
            (400, 200),
        ),
        (
            ImageFormat::Jpeg,
            limits(&["jpeg"], 20_000, 400),
            "image/jpeg",
            (168, 84),
        ),
    ] {
        let bytes = encoded(&noise(400, 200), format);
        let (sent_mime, sent) = fit_image("image/png", &bytes, &limits).unwrap();
        assert_eq!(sent_mime, mime, "{format:?} {limits:?}");
        assert!(
            sent.len() <= limits.max_image_bytes,
            "{format:?} {limits:?}"
        );
        let image = image::load_from_memory(&sent).unwrap();
        assert_eq!(
            (image.width(), image.height()),
            size,
            "{format:?} {limits:?}"
        );
        assert_eq!(image::guess_format(&sent).unwrap().to_mime_type(), mime);
    }
    // What is transparent is white and not black.
    let clear = encoded(&RgbaImage::new(300, 300), ImageFormat::Png);
    let (_, sent) = fit_image("image/png", &clear, &limits(&["jpeg"], 100_000, 100)).unwrap();
    let pixel = image::load_from_memory(&sent).unwrap().into_rgb8();
    assert!(pixel.get_pixel(50, 50).0.iter().all(|color| *color > 250));
}

// Files come from strangers: a small file can claim billions of pixels.
#[test]
fn an_image_with_too_many_pixels_or_damage_is_refused() {
    let all = MediaLimits::default();
    let mut bomb = png(10, 10);
    bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let checksum = crc32(&bomb[12..29]).to_be_bytes();
    bomb[29..33].copy_from_slice(&checksum);
    assert_eq!(
        fit_image("image/png", &bomb, &all).unwrap_err(),
        "the image has too many pixels: 65535 x 65535; send a smaller one"
    );
    assert_eq!(
        fit_image("image/png", b"no image", &all).unwrap_err(),
        "damaged image: the content is not png"
    );
    let none = limits(&[], 1000, 1000);
    let error = fit_image("image/png", &png(10, 10), &none).unwrap_err();
    assert_eq!(error, "the API of this model accepts no images");
    for format in [
        ImageFormat::Jpeg,
        ImageFormat::Png,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ] {
        let good = encoded(&noise(20, 20), format);
        for end in 0..good.len() {
            let _ = fit_image("image/png", &good[..end], &all);
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 * (sum & 1))
        })
    })
}

fn docx(body: &str) -> Vec<u8> {
    let xml = format!("<w:document xmlns:w=\"x\"><w:body>{body}</w:body></w:document>");
    archive(&[
        ("[Content_Types].xml", "<Types/>"),
        ("word/document.xml", &xml),
    ])
}

/// Returns the prompt of a message with a file: its text, and the content part of the file.
async fn prompt_with(fixture: &AgentFixture, item: MediaItem) -> (String, Option<Value>) {
    let message = ChannelMessage::new("s", "cli", "look").media(item);
    let turn = fixture.loaded(message).await;
    match turn.build_prompt(turn.message()).await.unwrap() {
        Prompt::Text(text) => (text, None),
        Prompt::Parts(parts) => {
            let text = parts[0]["text"].as_str().unwrap().to_owned();
            (text, parts.get(1).cloned())
        }
    }
}

#[test]
fn office_documents_have_text() {
    let sheet = r#"<worksheet><sheetData><row><c t="s"><v>0</v></c><c><v>42</v></c></row>
        <row><c t="inlineStr"><is><t>in line</t></is></c></row></sheetData></worksheet>"#;
    let slide = "<p:sld xmlns:a=\"a\" xmlns:p=\"p\"><a:p><a:r><a:t>Title</a:t></a:r></a:p></p:sld>";
    let cases: [(Vec<u8>, &str); 5] = [
        (
            docx(
                "<w:p><w:r><w:t>A &amp; B&#33;</w:t></w:r><w:del><w:r><w:t>gone</w:t></w:r></w:del></w:p><w:p><w:r><w:t>two</w:t><w:tab/><w:t>three</w:t></w:r></w:p>",
            ),
            "A & B!\ntwo\tthree",
        ),
        (
            docx(
                "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr></w:tbl>",
            ),
            "a\tb",
        ),
        (
            archive(&[
                ("xl/workbook.xml", "<workbook/>"),
                (
                    "xl/sharedStrings.xml",
                    "<sst><si><t>sha</t><r><t>red</t></r></si></sst>",
                ),
                ("xl/worksheets/sheet1.xml", sheet),
            ]),
            "[Sheet 1]\nshared\t42\nin line",
        ),
        (
            archive(&[
                ("ppt/presentation.xml", "<p/>"),
                ("ppt/slides/slide1.xml", slide),
            ]),
            "[Slide 1]\nTitle",
        ),
        (
            archive(&[(
                "content.xml",
                "<office:text><text:h>Head</text:h><text:p>one<text:span> two</text:span><text:line-break/>three</text:p></office:text>",
            )]),
            "Head\none two\nthree",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(office_text(&bytes, 1000).unwrap(), expected);
    }
}

// Files come from strangers: sizes are limited, and damage is an error.
#[test]
fn hostile_documents_are_refused_or_truncated() {
    let bomb = docx(&" ".repeat(33 * 1024 * 1024));
    assert!(bomb.len() < 100_000);
    assert_eq!(
        office_text(&bomb, 1000).unwrap_err(),
        "its unpacked text is larger than 32 MiB"
    );
    let entities = "<!DOCTYPE x [<!ENTITY a \"aaaa\">]><w:p><w:t>&a;b</w:t></w:p>";
    let bytes = archive(&[("word/document.xml", entities)]);
    assert_eq!(office_text(&bytes, 1000).unwrap(), "b");
    let long = docx(&format!("<w:p><w:t>{}</w:t></w:p>", "x".repeat(100_000)));
    assert!(office_text(&long, 10).unwrap().len() <= 40);
    let good = docx("<w:p><w:t>text</w:t></w:p>");
    for end in 0..good.len() {
        let _ = office_text(&good[..end], 1000);
    }
    for (bytes, reason) in [
        (archive(&[("readme.txt", "hi")]), "unsupported archive"),
        (
            archive(&[("word/document.xml", "<a><b></a>")]),
            "damaged document",
        ),
        (b"PK\x03\x04".to_vec(), "damaged archive"),
    ] {
        let error = office_text(&bytes, 1000).unwrap_err();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[tokio::test]
async fn a_document_is_stored_in_the_inbox_and_read() {
    let fixture = AgentFixture::new();
    let bytes = docx("<w:p><w:t>quarterly numbers</w:t></w:p>");
    let item = file(
        MediaKind::Document,
        "application/octet-stream",
        "../a b/Q3 report.docx",
        &bytes,
    );
    let (text, part) = prompt_with(&fixture, item.clone()).await;
    let expected = "[Content of ../a b/Q3 report.docx]\nquarterly numbers";
    assert_eq!(part, Some(json!({"type": "text", "text": expected})));
    let saved = text.split("files_saved=").nth(1).unwrap();
    let saved = saved.split(['|', '\n']).next().unwrap();
    assert!(
        saved.starts_with("inbox/") && saved.ends_with("-Q3_report.docx"),
        "{saved}"
    );
    let workspace = fixture.dir.path().join("workspace");
    assert_eq!(std::fs::read(workspace.join(saved)).unwrap(), bytes);
    // The same file is stored once.
    let (again, _) = prompt_with(&fixture, item).await;
    assert!(again.contains(saved), "{again}");
    let names = std::fs::read_dir(workspace.join("inbox")).unwrap();
    assert_eq!(names.count(), 2, "the file and .gitignore");
}

#[tokio::test]
async fn a_file_that_models_cannot_read_is_stored_and_named() {
    let fixture = AgentFixture::asking("http://127.0.0.1:9");
    for (kind, mime, name, bytes, reason) in [
        (
            MediaKind::Image,
            "image/heic",
            "a.heic",
            vec![0; 10],
            "unsupported image format image/heic",
        ),
        (
            MediaKind::Image,
            "image/png",
            "b.png",
            png(40, 30)[..100].to_vec(),
            "damaged image: ",
        ),
        (
            MediaKind::Video,
            "video/mp4",
            "v.mp4",
            vec![0; 10],
            "the API of this model accepts no videos",
        ),
        (
            MediaKind::Audio,
            "audio/ogg",
            "voice.ogg",
            b"OggS".to_vec(),
            "the sandbox, which `ffmpeg` needs, is unavailable",
        ),
        (
            MediaKind::Document,
            "application/x-thing",
            "c.bin",
            vec![1, 2, 3],
            "unsupported file type",
        ),
        (
            MediaKind::Document,
            "application/zip",
            "d.zip",
            archive(&[("x", "y")]),
            "unsupported archive",
        ),
    ] {
        let (text, part) = prompt_with(&fixture, file(kind, mime, name, &bytes)).await;
        assert_eq!(part, None, "{name}");
        assert!(
            text.contains(&format!("files_not_read={name} ({reason}")),
            "{text}"
        );
        assert!(text.contains("files_saved=inbox/"), "{text}");
    }
    // An image of a wrong type is sent with its real one, because providers reject it otherwise.
    let image = file(MediaKind::Image, "image/jpeg", "e.jpg", &png(40, 30));
    let (_, part) = prompt_with(&fixture, image).await;
    let url = part.unwrap()["image_url"]["url"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(url.starts_with("data:image/png;"), "{url}");
}

// A link in place of the inbox would let a message write outside the workspace.
#[tokio::test]
async fn the_inbox_is_never_a_link() {
    let fixture = AgentFixture::new();
    let (workspace, outside) = (
        fixture.dir.path().join("workspace"),
        fixture.dir.path().join("outside"),
    );
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, workspace.join("inbox")).unwrap();
    let item = file(MediaKind::Document, "text/plain", "note.txt", b"hello");
    let (text, part) = prompt_with(&fixture, item).await;
    assert_eq!(part.unwrap()["text"], "[Content of note.txt]\nhello");
    assert!(!text.contains("files_saved"), "{text}");
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0);
}

#[tokio::test]
async fn audio_is_transcribed_if_a_model_is_set_for_it() {
    let server = ModelServer::start();
    server.script(Reply::json(&json!({"text": " hello from a voice "})));
    let settings = [("BUB_TRANSCRIBE", "llamacpp:whisper-1")];
    let fixture = AgentFixture::asking_so(&server.url(), &settings, |builder| builder);
    let voice = file(MediaKind::Audio, "audio/ogg", "voice.ogg", b"OggS data");
    let (_, part) = prompt_with(&fixture, voice).await;
    let expected = "[Transcript of voice.ogg]\nhello from a voice";
    assert_eq!(part, Some(json!({"type": "text", "text": expected})));
    let request = server.requests().pop().unwrap();
    assert!(
        request.path.ends_with("/v1/audio/transcriptions"),
        "{}",
        request.path
    );
    let body = String::from_utf8_lossy(&request.body).into_owned();
    assert!(
        body.contains("name=\"model\"\r\n\r\nwhisper-1\r\n"),
        "{body}"
    );
    assert!(
        body.contains("filename=\"voice.ogg\"") && body.contains("OggS data"),
        "{body}"
    );
}

/// Creates a fixture that can start confined programs. `programs` are shell scripts that the programs of the system
/// cannot replace.
fn confined_fixture(variables: &[(&'static str, &str)], programs: &[(&str, &str)]) -> AgentFixture {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("workspace/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for (name, script) in programs {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    // Directories without the programs under test, which may be installed.
    let tools = ["sh", "cat", "sleep", "ln", "printf"];
    for tool in tools {
        let found = ["/bin", "/usr/bin"].map(|directory| Path::new(directory).join(tool));
        if let Some(found) = found.iter().find(|path| path.exists()) {
            std::os::unix::fs::symlink(found, bin.join(tool)).unwrap();
        }
    }
    let home = dir.path().join("home");
    let defaults = [
        ("BUB_HOME", home.to_str().unwrap()),
        ("HOME", dir.path().to_str().unwrap()),
        ("PATH", bin.to_str().unwrap()),
        ("BUB_LOCAL_MODELS", "false"),
    ];
    let settings = load_settings(defaults.iter().chain(variables).copied());
    let options = BuiltinOptions {
        launcher: Some(Launcher(supervised_program())),
        ..BuiltinOptions::default()
    };
    let framework = Framework::builder()
        .workspace(dir.path().join("workspace"))
        .settings(Arc::new(settings))
        .plugin_with("builtin", |context| BuiltinAgent::new(context, options))
        .build();
    AgentFixture { framework, dir }
}

const CHAT_MODEL: (&str, &str) = ("BUB_MODEL", "llamacpp:test");

// Voice messages are ogg, which few providers accept.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn audio_is_converted_to_a_format_that_the_model_accepts() {
    // The last argument is the result, and the file is the one before the options of the output.
    let script = r#"for last; do :; done
        while [ "$1" != -i ]; do shift; done
        { printf 'ID3 made from '; cat "$2"; } > "$last""#;
    let fixture = confined_fixture(&[CHAT_MODEL], &[("ffmpeg", script)]);
    let voice = |mime: &str, bytes: &[u8]| file(MediaKind::Audio, mime, "voice", bytes);
    let (_, part) = prompt_with(&fixture, voice("audio/ogg", b"OggS data")).await;
    let sent = |bytes: &[u8], format: &str| {
        let data = base64::engine::general_purpose::STANDARD.encode(bytes);
        Some(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}))
    };
    assert_eq!(part, sent(b"ID3 made from OggS data", "mp3"));
    // The content decides and not the declared type.
    let (_, part) = prompt_with(&fixture, voice("audio/ogg", b"RIFF....WAVE")).await;
    assert_eq!(part, sent(b"RIFF....WAVE", "wav"));
    let gemini = ("BUB_MODEL", "gemini:gemini-flash-latest");
    let fixture = confined_fixture(&[gemini, ("GEMINI_API_KEY", "x")], &[]);
    let (_, part) = prompt_with(&fixture, voice("audio/ogg", b"OggS data")).await;
    assert_eq!(part, sent(b"OggS data", "ogg"));
}

// The address of a provider decides about its wire format, and all models that may be tried count.
#[tokio::test]
async fn a_video_is_sent_if_all_models_of_the_turn_accept_it() {
    let vllm = ("BUB_MODEL", "vllm:test");
    let openai = ("BUB_MODEL", "openai:test");
    for (variables, is_sent) in [
        (vec![vllm], true),
        (vec![vllm, ("BUB_FALLBACK_MODELS", "llamacpp:test")], false),
        (vec![openai], false),
        (
            vec![openai, ("BUB_OPENAI_API_BASE", "http://127.0.0.1:9/v1")],
            true,
        ),
    ] {
        let variables = [&[("BUB_OPENAI_API_KEY", "x")][..], &variables].concat();
        let fixture = AgentFixture::asking_so("http://127.0.0.1:9", &variables, |builder| builder);
        let video = file(MediaKind::Video, "video/mp4", "v.mp4", b"data");
        let (text, part) = prompt_with(&fixture, video).await;
        assert_eq!(part.is_some(), is_sent, "{variables:?} {text}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn audio_that_cannot_be_converted_is_named_with_what_to_do() {
    let claude = ("BUB_MODEL", "anthropic:claude-sonnet-5-5");
    for (model, script, reason) in [
        (
            CHAT_MODEL,
            None,
            "the API of this model does not accept ogg; install `ffmpeg` to convert it, or set `transcribe` to send its text",
        ),
        (
            CHAT_MODEL,
            Some("exit 1"),
            "the file is damaged, encrypted or too large",
        ),
        (
            claude,
            None,
            "the API of this model accepts no audio; set `transcribe` to send its text",
        ),
        // A program that a hostile file took over must not choose what bub reads.
        (
            CHAT_MODEL,
            Some("for last; do :; done; ln -s /etc/passwd \"$last\""),
            "Too many levels of symbolic links",
        ),
    ] {
        let programs: Vec<_> = script
            .map(|script| ("ffmpeg", script))
            .into_iter()
            .collect();
        let fixture = confined_fixture(&[model, ("ANTHROPIC_API_KEY", "x")], &programs);
        let voice = file(MediaKind::Audio, "audio/ogg", "voice.ogg", b"OggS data");
        let (text, part) = prompt_with(&fixture, voice).await;
        assert_eq!(part, None);
        assert!(
            text.contains(&format!("files_not_read=voice.ogg ({reason}")),
            "{text}"
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn audio_is_converted_before_it_is_transcribed_if_necessary() {
    let server = ModelServer::start();
    let base = format!("{}/v1", server.url());
    let variables = [
        ("BUB_TRANSCRIBE", "llamacpp:whisper-1"),
        ("BUB_LLAMACPP_API_BASE", base.as_str()),
    ];
    let script = "for last; do :; done; printf 'ID3 converted' > \"$last\"";
    let fixture = confined_fixture(&variables, &[("ffmpeg", script)]);
    for (name, mime, sent) in [
        ("old.amr", "audio/amr", "filename=\"old.amr.mp3\""),
        ("voice", "audio/ogg", "filename=\"voice.ogg\""),
    ] {
        server.script(Reply::json(&json!({"text": "hello"})));
        let (_, part) = prompt_with(&fixture, file(MediaKind::Audio, mime, name, b"data")).await;
        let expected = format!("[Transcript of {name}]\nhello");
        assert_eq!(part, Some(json!({"type": "text", "text": expected})));
        let body = server.requests().pop().unwrap().body;
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(body.contains(sent), "{body}");
        assert_eq!(body.contains("ID3 converted"), name == "old.amr", "{body}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_pdf_document_is_read_by_a_confined_program() {
    let pdf = || {
        let mut item = file(
            MediaKind::Document,
            "application/pdf",
            "a.pdf",
            b"%PDF-1.7 x",
        );
        item.mime = "application/octet-stream".to_owned();
        item
    };
    for (script, expected) in [
        (
            Some("for last; do :; done; printf 'page one' > \"$last\"; ! printf x > inbox/x"),
            Ok("[Content of a.pdf]\npage one"),
        ),
        (
            Some("for last; do :; done; printf ' ' > \"$last\""),
            Err("the document has no text; it may be a scan"),
        ),
        (
            Some("exit 1"),
            Err("the file is damaged, encrypted or too large"),
        ),
        (
            None,
            Err("install `pdftotext` (package poppler-utils) to read PDF documents"),
        ),
    ] {
        let programs: Vec<_> = script
            .map(|script| ("pdftotext", script))
            .into_iter()
            .collect();
        let fixture = confined_fixture(&[CHAT_MODEL], &programs);
        let (text, part) = prompt_with(&fixture, pdf()).await;
        match expected {
            Ok(content) => assert_eq!(
                part,
                Some(json!({"type": "text", "text": content})),
                "{text}"
            ),
            Err(reason) => {
                assert_eq!(part, None);
                assert!(
                    text.contains(&format!("files_not_read=a.pdf ({reason})")),
                    "{text}"
                );
            }
        }
        // Nothing is left behind.
        let temp = fixture.dir.path().join("home/sandbox");
        assert_eq!(std::fs::read_dir(temp).unwrap().count(), 0);
    }
}

/// Starts a process on the directory of a fixture: its tapes are those of the fixture before.
fn restarted(fixture: AgentFixture, url: &str, variables: &[(&str, &str)]) -> AgentFixture {
    let base = format!("{url}/v1");
    let model = [CHAT_MODEL, ("BUB_LLAMACPP_API_BASE", base.as_str())];
    let test = bub::testing::framework(fixture.dir.path());
    let variables = model.iter().chain(variables);
    let test = variables.fold(test, |test, (name, value)| test.env(name, value));
    AgentFixture {
        framework: test.builder().unwrap().build(),
        dir: fixture.dir,
    }
}

/// Sends a message to the session and returns the messages of the request, without the system prompt.
async fn ask(fixture: &AgentFixture, server: &ModelServer, message: ChannelMessage) -> Vec<Value> {
    server.script(Reply::text("seen"));
    fixture.own_turn(message).await.unwrap();
    let mut messages = last_messages(server);
    messages.remove(0);
    messages
}

fn last_messages(server: &ModelServer) -> Vec<Value> {
    let request = server.requests().pop().unwrap();
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

fn text_message(text: &str) -> ChannelMessage {
    ChannelMessage::new("s", "cli", text)
}

fn image_message(name: &str, bytes: &[u8]) -> ChannelMessage {
    text_message("look").media(file(MediaKind::Image, "image/png", name, bytes))
}

/// Returns the last part of each message with several parts: an image as `image`, or a text.
fn last_parts(messages: &[Value]) -> Vec<String> {
    let parts = messages
        .iter()
        .filter_map(|message| message["content"].as_array()?.last());
    let text = |part: &Value| part["text"].as_str().map(str::to_owned);
    parts
        .map(|part| text(part).unwrap_or_else(|| "image".to_owned()))
        .collect()
}

#[tokio::test]
async fn an_image_is_sent_again_with_later_questions() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let scope = fixture.framework.clone();
    let bytes = png(20, 10);
    let (first, second) = scope
        .run_scoped(async {
            let first = ask(&fixture, &server, image_message("cat.png", &bytes)).await;
            let second = ask(&fixture, &server, text_message("and in the corner?")).await;
            Ok((first, second))
        })
        .await
        .unwrap();
    let data = base64::engine::general_purpose::STANDARD.encode(&bytes);
    let part =
        json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
    assert_eq!(first[0]["content"][1], part);
    assert!(second.starts_with(&first), "{second:?}");
    // After a restart, too.
    let fixture = restarted(fixture, &server.url(), &[]);
    let scope = fixture.framework.clone();
    scope
        .run_scoped(async {
            let third = ask(&fixture, &server, text_message("and above?")).await;
            assert!(third.starts_with(&second), "{third:?}");
            // Only the prompt of a subagent reaches it.
            server.script(Reply::new().call("c1", "subagent", r#"{"prompt": "count to three"}"#));
            server.script(Reply::text("one two three"));
            server.script(Reply::text("done"));
            fixture.own_turn(text_message("delegate")).await.unwrap();
            let requests = server.requests();
            let subagent = String::from_utf8_lossy(&requests[requests.len() - 2].body).into_owned();
            assert!(
                subagent.contains("count to three") && !subagent.contains("image_url"),
                "{subagent}"
            );
            assert_eq!(last_parts(&last_messages(&server)), ["image"]);
            // A handoff starts again without it.
            fixture
                .own_turn(text_message(",tape.handoff name=next summary=seen"))
                .await
                .unwrap();
            let after = ask(&fixture, &server, text_message("go on")).await;
            assert_eq!(last_parts(&after), Vec::<String>::new());
            Ok(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn images_beyond_the_limit_and_lost_ones_are_named() {
    let server = ModelServer::start();
    let limit = [("BUB_MEDIA_MAX_ITEMS", "2")];
    let fixture = AgentFixture::asking_so(&server.url(), &limit, |builder| builder);
    let scope = fixture.framework.clone();
    scope
        .run_scoped(async {
            for name in ["a.png", "b.png", "c.png"] {
                ask(&fixture, &server, image_message(name, &png(20, 10))).await;
            }
            let shown = ask(&fixture, &server, text_message("which?")).await;
            let expected = [
                "[image a.png, sent earlier]",
                "[image b.png, sent earlier]",
                "image",
            ];
            assert_eq!(last_parts(&shown), expected);
            let again = ask(&fixture, &server, text_message("and now?")).await;
            assert!(again.starts_with(&shown));
            // Without its file, an image is named.
            let blobs = fixture.framework.tape_store().unwrap().blobs();
            for blob in blobs.list().await.unwrap() {
                blobs.remove(&blob).await.unwrap();
            }
            let lost = ask(&fixture, &server, text_message("still?")).await;
            assert_eq!(last_parts(&lost)[2], "[image c.png, sent earlier]");
            Ok(())
        })
        .await
        .unwrap();
    // The limit in bytes.
    let fixture = restarted(fixture, &server.url(), &[("BUB_MEDIA_MAX_MB", "1")]);
    let scope = fixture.framework.clone();
    scope
        .run_scoped(async {
            ask(
                &fixture,
                &server,
                image_message("large.png", &png(600, 600)),
            )
            .await;
            let shown = ask(&fixture, &server, text_message("and?")).await;
            assert_eq!(last_parts(&shown)[3], "[image large.png, sent earlier]");
            Ok(())
        })
        .await
        .unwrap();
}

// A server whose model reads no images would otherwise reject all later messages of the session.
#[tokio::test]
async fn a_rejected_image_does_not_block_the_session() {
    let server = ModelServer::start();
    let fixture = AgentFixture::asking(&server.url());
    let scope = fixture.framework.clone();
    scope
        .run_scoped(async {
            server.script(Reply::status(400).message("image input is not supported"));
            assert!(
                fixture
                    .own_turn(image_message("cat.png", &png(20, 10)))
                    .await
                    .is_err()
            );
            let shown = ask(&fixture, &server, text_message("hello")).await;
            assert_eq!(last_parts(&shown), ["[image cat.png, sent earlier]"]);
            // Another model may read no images. The request is repeated without those of earlier turns.
            ask(&fixture, &server, image_message("dog.png", &png(20, 10))).await;
            server.script(Reply::status(400).message("image input is not supported"));
            let shown = ask(&fixture, &server, text_message("go on")).await;
            let markers = [
                "[image cat.png, sent earlier]",
                "[image dog.png, sent earlier]",
            ];
            assert_eq!(last_parts(&shown), markers);
            Ok(())
        })
        .await
        .unwrap();
}
