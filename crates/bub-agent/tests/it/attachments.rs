//! Files that users attach to messages.

use std::{
    io::{Cursor, Write as _},
    sync::Arc,
};

use bub_agent::office_text;
use bub_kernel::{BoxFuture, ChannelMessage, MediaFetcher, MediaItem, MediaKind, Prompt, Result};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::harness::AgentFixture;

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
    let fixture = AgentFixture::new();
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
            vec![0; 4_000_000],
            "the image is larger than 3.75 MB",
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
    let png = b"\x89PNG\r\n\x1a\n";
    let (_, part) = prompt_with(&fixture, file(MediaKind::Image, "image/jpeg", "e.jpg", png)).await;
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
