use super::*;

fn decode_events(chunks: &[&[u8]]) -> Vec<(String, String)> {
    let mut decoder = SseDecoder::new();
    let mut seen = Vec::new();
    let mut sink = |event: SseEvent<'_>| {
        seen.push((
            String::from_utf8_lossy(event.event).into_owned(),
            String::from_utf8_lossy(event.data).into_owned(),
        ));
        Ok::<(), SseError>(())
    };
    for chunk in chunks {
        decoder.push(chunk, &mut sink).unwrap();
    }
    decoder.finish(&mut sink).unwrap();
    seen
}

fn decode_data(text: &str) -> Vec<String> {
    decode_events(&[text.as_bytes()])
        .into_iter()
        .map(|(_, data)| data)
        .collect()
}

#[test]
fn every_line_ending_ends_a_line() {
    for end in ["\n", "\r\n", "\r"] {
        let text = format!("data: a{end}data: b{end}{end}data: c{end}{end}");
        assert_eq!(decode_data(&text), ["a\nb", "c"], "{end:?}");
    }
}

#[test]
fn a_cr_and_its_lf_may_come_in_different_chunks() {
    let chunks: [&[u8]; 4] = [b"data: a\r", b"\ndata: b\r", b"\n\r", b"\ndata: c\r\r"];
    let decoded: Vec<_> = decode_events(&chunks)
        .into_iter()
        .map(|(_, data)| data)
        .collect();
    assert_eq!(decoded, ["a\nb", "c"]);
}

#[test]
fn comments_unknown_fields_ids_and_retries_are_skipped() {
    assert_eq!(
        decode_data(": ping\n\nid: 7\nretry: 10\nwhat: ever\ndata: x\n:\n\n"),
        ["x"]
    );
}

#[test]
fn the_event_name_belongs_to_one_event_only() {
    let seen =
        decode_events(&[b"event: error\ndata: 1\n\ndata: 2\n\nevent: lonely\n\ndata: 3\n\n"]);
    let names: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["error", "", ""]);
}

#[test]
fn a_byte_order_mark_is_skipped_only_at_the_start() {
    assert_eq!(decode_data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
}

#[test]
fn one_space_after_the_colon_is_syntax_and_a_second_one_data() {
    assert_eq!(
        decode_data("data:a\n\ndata:  b\n\ndata\n\ndata:\ndata:\n\n"),
        ["a", " b", "\n"]
    );
}

#[test]
fn a_last_event_without_blank_line_is_kept() {
    assert_eq!(decode_data("data: a\n\ndata: [DONE]"), ["a", "[DONE]"]);
}

#[test]
fn bytes_that_are_no_text_pass_through() {
    let mut decoder = SseDecoder::new();
    let mut seen = Vec::new();
    let pushed = decoder.push(b"data: \xff\xfe\n\n", |event| {
        seen.push(event.data.to_vec());
        Ok::<(), SseError>(())
    });
    assert_eq!((pushed, seen), (Ok(()), vec![b"\xff\xfe".to_vec()]));
}

#[test]
fn ten_megabytes_in_one_event_pass_and_the_limit_holds() {
    let mut text = b"data: ".to_vec();
    text.resize(10 * 1024 * 1024, b'x');
    text.extend_from_slice(b"\n\n");
    let mut decoder = SseDecoder::new();
    let mut length = 0;
    for chunk in text.chunks(7000) {
        decoder
            .push(chunk, |event| {
                length = event.data.len();
                Ok::<(), SseError>(())
            })
            .unwrap();
    }
    assert_eq!(length, 10 * 1024 * 1024 - 6);
    assert!(
        decoder.data.capacity() <= RETAINED_CAPACITY
            && decoder.partial.capacity() <= RETAINED_CAPACITY
    );

    let mut small = SseDecoder::with_limit(1000);
    let result = text
        .chunks(100)
        .try_for_each(|chunk| small.push(chunk, |_| Ok::<(), SseError>(())));
    assert_eq!(result, Err(SseError::TooLong { limit: 1000 }));
    let lines = b"data: 0123456789\n".repeat(100);
    let result = SseDecoder::with_limit(1000).push(&lines, |_| Ok::<(), SseError>(()));
    assert_eq!(result, Err(SseError::TooLong { limit: 1000 }));
}

#[test]
fn a_sink_that_fails_stops_the_stream() {
    let mut count = 0;
    let result = SseDecoder::new().push(b"data: 1\n\ndata: 2\n\n", |_| {
        count += 1;
        Err(SseError::TooLong { limit: 0 })
    });
    assert_eq!((result.is_err(), count), (true, 1));
}
