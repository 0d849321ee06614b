//! Fields, and the state of a turn.

use bub_kernel::{Fields, State, StatePatch};
use serde_json::json;

#[test]
fn a_field_that_is_set_again_keeps_its_place() {
    let mut fields = Fields::new().with("a", 1).with("b", 2);
    fields.set("a", 3);
    assert_eq!(serde_json::to_string(&fields).unwrap(), r#"{"a":3,"b":2}"#);
    assert_eq!(fields.remove("a"), Some(json!(3)));
    assert_eq!(fields.remove("a"), None);
    assert_eq!((fields.len(), fields.is_empty()), (1, false));
}

#[test]
fn merging_fields_lets_the_incoming_win() {
    let mut fields = Fields::new().with("a", 1).with("b", 2);
    fields.merge(Fields::new().with("c", 3).with("a", 4));
    assert_eq!(
        serde_json::to_string(&fields).unwrap(),
        r#"{"a":4,"b":2,"c":3}"#
    );
}

// S-50
#[test]
fn clones_of_a_state_are_the_same_state_and_a_detached_one_is_not() {
    let state = State::new();
    let (same, other) = (state.clone(), {
        state.set("a", 1);
        state.deep_copy()
    });
    same.set("a", 2);
    other.set("b", 3);
    assert_eq!(state.get("a"), Some(json!(2)));
    assert_eq!(state.get("b"), None);
    assert_eq!(other.get("a"), Some(json!(1)));
}

#[test]
fn values_can_be_read_looked_at_and_removed() {
    let state = State::from_patch(
        StatePatch::new()
            .with("name", "x")
            .with("list", json!([1, 2])),
    );
    assert_eq!(state.get_str("name").as_deref(), Some("x"));
    assert_eq!(state.get_str("list"), None);
    assert_eq!(
        state.with_value("list", |list| list.unwrap().as_array().unwrap().len()),
        2
    );
    assert_eq!(state.remove("name"), Some(json!("x")));
    assert_eq!(state.get("name"), None);
}

#[test]
fn what_belongs_to_the_runtime_does_not_leave_the_process() {
    let state = State::new();
    state.set("_runtime_workspace", "/project");
    state.set("session_id", "s");
    assert_eq!(
        serde_json::to_value(state.public_fields()).unwrap(),
        json!({"session_id": "s"})
    );
}

// The cost of merging many names is linear, because an index is used.
#[test]
fn many_fields_merge_like_few() {
    let numbered = |range: std::ops::Range<u32>, value: &str| -> Fields {
        range
            .map(|number| (format!("name {number}"), value.to_owned()))
            .collect()
    };
    let mut fields = numbered(0..50_000, "old");
    fields.merge(numbered(25_000..75_000, "new"));
    assert_eq!(fields.len(), 75_000);
    assert_eq!(fields.get_str("name 24999"), Some("old"));
    assert_eq!(fields.get_str("name 25000"), Some("new"));
    let order: Vec<_> = fields
        .iter()
        .map(|(name, _)| name.to_owned())
        .take(2)
        .collect();
    assert_eq!(order, ["name 0", "name 1"]);
}
