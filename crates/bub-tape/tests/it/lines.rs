//! Encoding entries as lines, and decoding lines of other writers.

use bub_tape::{Entry, EntryId, EntryKind, TapeName, codec, new_run_id, parse_json_lossy};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn decode(line: &str) -> Option<Entry> {
    codec::decode(line.as_bytes())
}

// C.1: key order, separators, non-ASCII as is.
#[test]
fn a_line_is_written_byte_for_byte_as_in_python() {
    let mut entry = Entry::anchor(
        "session/start",
        Some(json!({"owner": "human", "note": "你好 🐙\n\"x\"\\ \u{1}"})),
    );
    entry.id = EntryId::new(1);
    entry.date = "2026-11-15T18:09:55.707194+00:00".to_owned();
    assert_eq!(
        codec::encode(&entry),
        "{\"id\": 1, \"kind\": \"anchor\", \"payload\": {\"name\": \"session/start\", \"state\": {\"owner\": \"human\", \
         \"note\": \"你好 🐙\\n\\\"x\\\"\\\\ \\u0001\"}}, \"meta\": {}, \"date\": \"2026-11-15T18:09:55.707194+00:00\"}\n"
    );
}

// C.1: decoding and encoding a line of the Python version gives the same bytes.
#[test]
fn a_line_of_the_python_version_survives_a_round_trip() {
    let line = r#"{"id": 7, "kind": "tool_call", "payload": {"calls": [{"id": "call_a", "function": {"arguments": "{\"cmd\": \"echo hi\"}", "name": "bash"}, "type": "function"}]}, "meta": {"run_id": "run-20261115T180955712123Z"}, "date": "2026-11-15T18:09:55.707194+00:00"}"#;
    assert_eq!(codec::encode(&decode(line).unwrap()), format!("{line}\n"));
}

// H-50: the format of the payloads.
#[test]
fn constructors_make_the_payloads_of_the_python_version() {
    let payload = |entry: Entry| (entry.kind.to_string(), Value::Object(entry.payload));
    assert_eq!(
        payload(Entry::anchor("a", None)),
        ("anchor".to_owned(), json!({"name": "a"}))
    );
    assert_eq!(
        payload(Entry::event("e", Some(json!(1)))),
        ("event".to_owned(), json!({"name": "e", "data": 1}))
    );
    let error = Entry::error("provider", "no", Some(json!({"status": 500})));
    assert_eq!(
        payload(error),
        (
            "error".to_owned(),
            json!({"kind": "provider", "message": "no", "details": {"status": 500}})
        )
    );
    assert_eq!(
        payload(Entry::system("s")),
        ("system".to_owned(), json!({"content": "s"}))
    );
    let call = Entry::tool_call(vec![json!({"id": "c1"}), json!({})]);
    assert_eq!(call.meta["call_ids"], json!(["c1", null]));
    assert_eq!(
        payload(call),
        ("tool_call".to_owned(), json!({"calls": [{"id": "c1"}, {}]}))
    );
    assert_eq!(
        payload(Entry::tool_result(vec![json!("r")])),
        ("tool_result".to_owned(), json!({"results": ["r"]}))
    );
    assert_eq!(
        payload(Entry::message("user", "hi")),
        (
            "message".to_owned(),
            json!({"role": "user", "content": "hi"})
        )
    );
}

// C.2, H-58: lines that are not entries are skipped.
#[test]
fn lines_that_are_no_entries_are_skipped() {
    for line in [
        "",
        "   \n",
        "nonsense",
        "[1]",
        r#"{"id": "1", "kind": "x", "payload": {}}"#,
        r#"{"id": 1.5, "kind": "x", "payload": {}}"#,
        r#"{"id": 1, "kind": 2, "payload": {}}"#,
        r#"{"id": 1, "kind": "x", "payload": []}"#,
        r#"{"id": 1, "kind": "x"}"#,
        r#"{"id": 1, "kind": "x", "payload": {"#,
        "{\"id\": 1, \"kind\": \"x\", \"payload\": {\"a\": \"\u{1}\"}}",
    ] {
        assert_eq!(decode(line), None, "{line}");
    }
    assert_eq!(
        codec::decode(b"{\"id\": 1, \"kind\": \"x\", \"payload\": {\"a\": \"\xe4\xbd\"}}"),
        None
    );
}

// C.2: Python writes NaN and Infinity, and model output contains lone surrogates.
#[test]
fn literals_that_json_does_not_know_are_tolerated() {
    let line = r#"{"id": 3, "kind": "event", "payload": {"a": NaN, "b": [Infinity, -Infinity, 1e999, -2.5e3], "c": "\ud800x\ud83d\udc19\udc00"}, "meta": {}, "date": "d"}"#;
    let entry = decode(line).unwrap();
    assert_eq!(entry.payload["a"], Value::Null);
    assert_eq!(entry.payload["b"], json!([null, null, null, -2500.0]));
    assert_eq!(entry.payload["c"], json!("\u{fffd}x🐙\u{fffd}"));
}

// W-4: as much of the model output as possible is preserved.
#[test]
fn a_lone_surrogate_in_model_output_costs_one_character() {
    assert_eq!(
        parse_json_lossy(r#"{"text": "\ud800 and \ud800\n"}"#),
        Some(json!({"text": "\u{fffd} and \u{fffd}\n"}))
    );
    assert_eq!(parse_json_lossy("{\"text\": "), None);
}

// C.2, H-58: legacy entries have a float timestamp instead of a date.
#[test]
fn a_legacy_timestamp_becomes_a_date() {
    let date = |line: &str| decode(line).unwrap().date;
    let entry = r#"{"id": 1, "kind": "event", "payload": {}, "timestamp": 1763233795.707194}"#;
    assert_eq!(date(entry), "2025-11-15T19:09:55.707194+00:00");
    assert_eq!(
        date(r#"{"id": 1, "kind": "event", "payload": {}}"#),
        "1970-01-01T00:00:00+00:00"
    );
    assert_eq!(
        date(r#"{"id": 1, "kind": "event", "payload": {}, "date": 5, "timestamp": 2}"#),
        "1970-01-01T00:00:02+00:00"
    );
}

// C.2: unknown kinds and keys are preserved, and a meta that is not an object becomes an empty one.
#[test]
fn unknown_kinds_and_keys_are_preserved() {
    let line =
        r#"{"id": 1, "kind": "dream", "payload": {}, "meta": {}, "date": "d", "z": 1, "a": [2]}"#;
    let entry = decode(line).unwrap();
    assert_eq!(entry.kind, EntryKind::Other("dream".to_owned()));
    assert_eq!(codec::encode(&entry), format!("{line}\n"));
    assert!(
        decode(r#"{"id": 1, "kind": "dream", "payload": {}, "meta": [1]}"#)
            .unwrap()
            .meta
            .is_empty()
    );
}

// C.2: the three formats of a date.
#[test]
fn dates_are_understood_in_every_form_the_python_version_writes() {
    let moment = |date: &str| {
        Entry::event("x", None)
            .with_date(date)
            .timestamp()
            .map(|moment| moment.to_string())
    };
    assert_eq!(
        moment("2026-11-15T18:09:55.707194+00:00").as_deref(),
        Some("2026-11-15T18:09:55.707194Z")
    );
    assert_eq!(
        moment("2026-11-15T18:09:55Z").as_deref(),
        Some("2026-11-15T18:09:55Z")
    );
    assert_eq!(
        moment("2026-11-15T18:09:55").as_deref(),
        Some("2026-11-15T18:09:55Z")
    );
    assert_eq!(moment("yesterday"), None);
    assert!(Entry::event("x", None).date.ends_with("+00:00"));
}

// H-63
#[test]
fn a_run_id_is_the_moment_in_microseconds() {
    let id = new_run_id();
    let digits = id
        .strip_prefix("run-")
        .and_then(|rest| rest.strip_suffix('Z'))
        .unwrap();
    assert_eq!(digits.len(), "20261115T180955712123".len(), "{id}");
}

// S-59, C.3: names that the Python version generates.
#[test]
fn tapes_are_named_as_in_the_python_version() {
    let tape = TapeName::for_session("/srv/demo", "cli:local");
    assert_eq!(tape.as_str(), "53047a1277384003__0b871d5e50e7c192");
    assert_ne!(tape, TapeName::for_session("/srv/other", "cli:local"));
    assert_eq!(
        tape.sidecar("spill").unwrap().as_str(),
        "53047a1277384003__0b871d5e50e7c192__sidecar__spill"
    );
    assert!(tape.is_session() && !tape.sidecar("spill").unwrap().is_session());
}

#[test]
fn a_tape_name_cannot_leave_its_directory() {
    let long = "x".repeat(300);
    for name in [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a:b",
        ".hidden",
        "a\0b",
        "a\nb",
        long.as_str(),
    ] {
        let error = TapeName::new(name).unwrap_err();
        assert_eq!(
            error.kind(),
            bub_tape::TapeErrorKind::InvalidInput,
            "{name:?}"
        );
    }
    assert!(
        TapeName::for_session("/w", "s")
            .sidecar("../../etc")
            .is_err()
    );
    assert!(TapeName::new("你好__x").is_ok());
}

// Deeply nested text is rejected or read, but never overflows the stack.
#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    for depth in [100, 127, 128, 500, 990, 100_000] {
        let line = format!(
            r#"{{"id": 1, "kind": "x", "payload": {{"a": {}1{}}}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        assert_eq!(decode(&line).is_some(), depth < 1_000, "{depth}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".*", inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_entry_comes_back_from_its_line(payload in prop::collection::vec((".*", any_json()), 0..4), kind in ".*", id in any::<i64>()) {
        let mut entry = Entry::new(EntryKind::from(kind.as_str()), payload.into_iter().collect());
        entry.id = EntryId::new(id);
        let line = codec::encode(&entry);
        prop_assert_eq!(line.matches('\n').count(), 1);
        prop_assert_eq!(codec::decode(line.as_bytes()), Some(entry));
    }

    // The same check as the fuzz target of the line decoder.
    #[test]
    fn no_bytes_break_the_line_reader(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = codec::decode(&bytes);
    }

    #[test]
    fn no_damaged_line_breaks_the_line_reader(payload in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut line = codec::encode(&Entry::event("x", Some(payload))).into_bytes();
        let at = at.index(line.len());
        line[at] = byte;
        let _ = codec::decode(&line);
        let _ = codec::decode(&line[..at]);
    }

    // The lenient parser agrees with the strict one on all text that the strict one accepts.
    #[test]
    fn both_json_readers_agree(value in any_json()) {
        // The literal makes the strict parser fail.
        prop_assert_eq!(parse_json_lossy(&format!("[NaN, {value}]")), Some(json!([null, value])));
    }
}
