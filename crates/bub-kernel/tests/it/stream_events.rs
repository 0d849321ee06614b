//! Stream events as JSON.

use bub_kernel::{Error, ErrorKind, StreamEvent};
use serde_json::json;

// H-45
#[test]
fn every_kind_has_its_form() {
    let cases = [
        (
            StreamEvent::Text("a".into()),
            json!({"kind": "text", "data": {"delta": "a"}}),
        ),
        (
            StreamEvent::Reasoning("b".into()),
            json!({"kind": "reasoning", "data": {"delta": "b"}}),
        ),
        (
            StreamEvent::ToolCall(vec![json!({"id": "1"})]),
            json!({"kind": "tool_call", "data": {"tool_calls": [{"id": "1"}]}}),
        ),
        (
            StreamEvent::ToolResult(vec![json!("out")]),
            json!({"kind": "tool_result", "data": {"tool_results": ["out"]}}),
        ),
        (
            StreamEvent::Usage(json!({"total_tokens": 3})),
            json!({"kind": "usage", "data": {"total_tokens": 3}}),
        ),
        (
            StreamEvent::Error(Error::new(ErrorKind::Tool, "no")),
            json!({"kind": "error", "data": {"kind": "tool", "message": "no"}}),
        ),
        (
            StreamEvent::Error(Error::unknown("no").with_detail("code", 5)),
            json!({"kind": "error", "data": {"kind": "unknown", "message": "no", "details": {"code": 5}}}),
        ),
        (
            StreamEvent::Final(json!({"ok": true, "text": "a"})),
            json!({"kind": "final", "data": {"ok": true, "text": "a"}}),
        ),
        (
            StreamEvent::Other {
                kind: "progress".into(),
                data: json!([1]),
            },
            json!({"kind": "progress", "data": [1]}),
        ),
    ];
    for (event, value) in cases {
        assert_eq!(event.to_value(), value);
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
        let back: StreamEvent = serde_json::from_value(value.clone()).unwrap();
        assert_eq!((back.kind(), back.to_value()), (event.kind(), value));
    }
}

// H-45
#[test]
fn a_known_kind_with_odd_data_is_passed_on_as_it_is() {
    for value in [
        json!({"kind": "text", "data": {"delta": 3}}),
        json!({"kind": "text", "data": null}),
        json!({"kind": "tool_call", "data": {"calls": []}}),
        json!({"kind": "tool_result", "data": "x"}),
    ] {
        let event = StreamEvent::from_value(&value);
        assert!(matches!(event, StreamEvent::Other { .. }), "{value}");
        assert_eq!(event.to_value(), value);
    }
}

#[test]
fn what_is_no_event_at_all_has_an_unknown_kind() {
    for value in [json!(null), json!({}), json!("x"), json!({"kind": 3})] {
        assert_eq!(StreamEvent::from_value(&value).kind(), "unknown");
    }
}
