//! Tests of images, audio, video and files in requests.

use bub_model::{Quirks, WireFormat};
use serde_json::json;

use super::encode::{call, encode, plain, request};

/// H-84: media parts are rewritten for servers that require it, and only in the sent request.
#[test]
fn video_and_audio_become_files_where_wanted() {
    let parts = json!([
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAA"}},
        {"type": "input_audio", "input_audio": {"data": "BBB", "format": "mp3"}},
    ]);
    let request = request(json!([{"role": "user", "content": parts}]));
    let quirks = Quirks {
        media_as_file: true,
        ..Quirks::default()
    };
    let sent = encode(WireFormat::ChatCompletions, &request, &quirks);
    let content = &sent["messages"][0]["content"];
    assert_eq!(content[1], parts[1]);
    assert_eq!(
        content[2],
        json!({"type": "file", "file": {"file_data": "data:video/mp4;base64,AAA"}})
    );
    assert_eq!(
        content[3],
        json!({"type": "file", "file": {"file_data": "data:audio/mp3;base64,BBB"}})
    );
    assert_eq!(
        request.messages[0]["content"], parts,
        "the source message is unchanged"
    );
    assert_eq!(
        encode(WireFormat::ChatCompletions, &request, &Quirks::default())["messages"][0]["content"],
        parts
    );
}

/// H-84, H-92, H-101: images, audio, video and files in each format.
#[test]
fn media_are_carried_or_their_absence_is_stated() {
    let content = json!([
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "BB", "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,CC"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,DD"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk="}},
        {"type": "hologram"},
    ]);
    let message = json!([{"role": "user", "content": content}]);
    assert_eq!(
        plain(WireFormat::ChatCompletions, message.clone())["messages"][0]["content"],
        content
    );
    let omitted =
        |kind: &str| format!("[{kind} omitted: the API of this model does not support it]");
    assert_eq!(
        plain(WireFormat::Messages, message.clone())["messages"][0]["content"],
        json!([
            {"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
            {"type": "text", "text": omitted("audio")},
            {"type": "text", "text": omitted("video")},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "DD"}, "title": "a.pdf"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
            {"type": "text", "text": omitted("hologram")},
        ])
    );
    assert_eq!(
        plain(WireFormat::Responses, message.clone())["input"][0]["content"],
        json!([
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA"},
            {"type": "input_image", "image_url": "https://x.test/a.png"},
            {"type": "input_audio", "input_audio": {"data": "BB", "format": "mp3"}},
            {"type": "input_text", "text": omitted("video")},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,DD"},
            {"type": "input_file", "filename": "file", "file_data": "data:text/plain;base64,aGk="},
            {"type": "input_text", "text": omitted("hologram")},
        ])
    );
    let inline = |mime: &str, data: &str| json!({"inlineData": {"mimeType": mime, "data": data}});
    assert_eq!(
        plain(WireFormat::GenerateContent, message)["contents"][0]["parts"],
        json!([
            {"text": "look"},
            inline("image/png", "AA"),
            {"fileData": {"fileUri": "https://x.test/a.png"}},
            inline("audio/mpeg", "BB"),
            inline("video/mp4", "CC"),
            inline("application/pdf", "DD"),
            inline("text/plain", "aGk="),
            {"text": omitted("hologram")},
        ])
    );
}

#[test]
fn media_in_tool_results_are_carried() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call("c", "{}")]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}, image]},
    ]);
    let result = &plain(WireFormat::Messages, messages.clone())["messages"][2]["content"][0];
    assert_eq!(result["content"][1]["type"], "image");
    let output = &plain(WireFormat::Responses, messages.clone())["input"][2]["output"];
    assert_eq!(output[1]["type"], "input_image");
    let parts = &plain(WireFormat::GenerateContent, messages)["contents"][2]["parts"];
    assert_eq!(
        parts[0]["functionResponse"]["response"],
        json!({"result": "seen"})
    );
    assert_eq!(parts[1]["inlineData"]["data"], "AA");
}

// A server rejects a request with audio in a format that it does not know.
#[test]
fn audio_in_a_format_that_the_server_rejects_is_a_note() {
    for (format, is_sent) in [("mp3", true), ("wav", true), ("ogg", false)] {
        let part = json!({"type": "input_audio", "input_audio": {"data": "BBB", "format": format}});
        let request = request(json!([{"role": "user", "content": [part]}]));
        let quirks = Quirks {
            audio_formats: vec!["ogg".to_owned()],
            ..Quirks::default()
        };
        for wire in [
            WireFormat::ChatCompletions,
            WireFormat::Responses,
            WireFormat::GenerateContent,
        ] {
            let sent = encode(wire, &request, &Quirks::default()).to_string();
            assert_eq!(sent.contains("BBB"), is_sent, "{sent}");
            assert_eq!(sent.contains("set `transcribe`"), !is_sent, "{sent}");
            let sent = encode(wire, &request, &quirks).to_string();
            assert_eq!(sent.contains("BBB"), format == "ogg", "{sent}");
        }
    }
}

// Images on a tape may come from a turn with another model.
#[test]
fn an_image_that_the_server_rejects_is_a_note() {
    let image = |mime: &str, data: &str| json!({"type": "image_url", "image_url": {"url": format!("data:{mime};base64,{data}")}});
    let quirks = Quirks {
        image_formats: vec!["jpeg".to_owned()],
        max_image_bytes: 6,
        ..Quirks::default()
    };
    for (mime, data, note) in [
        ("image/jpeg", "AAAABBBB", None),
        ("image/jpg", "AAAABBB=", None),
        (
            "image/jpeg",
            "AAAABBBBCCCC",
            Some("the API of this model accepts only smaller ones"),
        ),
        (
            "image/webp",
            "AAAA",
            Some("the API of this model does not accept webp"),
        ),
    ] {
        let request = request(json!([
            {"role": "user", "content": [{"type": "text", "text": "look"}, image(mime, data)]},
        ]));
        for wire in WireFormat::ALL {
            let sent = encode(wire, &request, &quirks).to_string();
            assert_eq!(sent.contains(data), note.is_none(), "{sent}");
            if let Some(note) = note {
                assert!(sent.contains(&format!("[image omitted: {note}]")), "{sent}");
            }
            assert!(sent.contains("look"), "{sent}");
        }
    }
}
