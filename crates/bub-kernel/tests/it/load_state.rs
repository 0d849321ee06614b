//! Loading the state of a turn.

use bub_kernel::{StatePatch, hooks::point::LoadState};
use serde_json::json;

use crate::support::{FakePlugin, detached, framework, none, turn};

fn state_plugin(patch: serde_json::Value) -> FakePlugin {
    FakePlugin::new().on::<LoadState>(move |_| Ok(Some(StatePatch::from(patch.clone()))))
}

// S-5
#[tokio::test]
async fn state_starts_with_the_absolute_workspace() {
    let relative = bub_kernel::Framework::builder()
        .workspace("some/dir")
        .build();
    let turn = detached(&relative);
    relative.load_state(&turn).await.unwrap();
    let workspace = turn.state().get_str("_runtime_workspace").unwrap();
    assert!(std::path::Path::new(&workspace).is_absolute());
    assert!(workspace.ends_with("some/dir"));
    assert_eq!(relative.workspace(), std::path::Path::new(&workspace));
}

// S-6
#[tokio::test]
async fn all_contribute_and_the_latest_registered_wins() {
    let plugins = [
        state_plugin(json!({"owner": "builtin", "low": 1})),
        state_plugin(json!({"owner": "middle", "mid": 2})),
        FakePlugin::new().on::<LoadState>(|_| none()),
        state_plugin(json!({"owner": "late", "nested": {"a": 1}})),
    ];
    let state = turn(&framework(plugins)).await.unwrap().state;
    let fields = serde_json::to_value(state.public_fields()).unwrap();
    assert_eq!(
        fields,
        json!({"owner": "late", "low": 1, "mid": 2, "nested": {"a": 1}})
    );
}

// S-6: patches are merged by name. Nested values are replaced.
#[tokio::test]
async fn a_name_is_replaced_as_a_whole() {
    let plugins = [
        state_plugin(json!({"map": {"a": 1}})),
        state_plugin(json!({"map": {"b": 2}})),
    ];
    let state = turn(&framework(plugins)).await.unwrap().state;
    assert_eq!(state.get("map"), Some(json!({"b": 2})));
}

// S-6
#[tokio::test]
async fn a_contribution_that_is_no_map_is_ignored() {
    for odd in [json!(null), json!("text"), json!([1, 2]), json!(3)] {
        let plugins = [state_plugin(json!({"kept": true})), state_plugin(odd)];
        let state = turn(&framework(plugins)).await.unwrap().state;
        assert_eq!(
            serde_json::to_value(state.public_fields()).unwrap(),
            json!({"kept": true})
        );
    }
}

// S-6
#[tokio::test]
async fn plugins_may_replace_what_the_runtime_seeds() {
    let state = turn(&framework([state_plugin(
        json!({"_runtime_workspace": "/other"}),
    )]))
    .await
    .unwrap()
    .state;
    assert_eq!(state.get_str("_runtime_workspace").unwrap(), "/other");
}
