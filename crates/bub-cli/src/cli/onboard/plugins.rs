//! Lets plugins ask for their settings through the hook `onboard_config`.

use bub_kernel::{Error, Result};
use bub_settings::EditError;
use serde_json::{Map, Value};

use super::{super::prompt, Onboarding};

/// Calls each plugin with the configuration so far and merges its result. Keys that a plugin does not return are kept.
pub(super) async fn set_up_plugins(onboarding: &mut Onboarding<'_>) -> Result<()> {
    let config_error = |error: EditError| Error::config(error.to_string());
    let before = onboarding.file.parse().map_err(config_error)?;
    let (framework, config) = (onboarding.framework.clone(), Value::Object(before.clone()));
    // A plugin may read from the terminal without a time limit.
    let after =
        prompt::run_interruptible("", move || framework.collect_onboard_config(config)).await?;
    let Value::Object(after) = after else {
        return Ok(());
    };
    let mut changes = Vec::new();
    collect_differences(&before, &after, &mut Vec::new(), &mut changes);
    for (path, value) in changes {
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        onboarding.file.set(&path, &value).map_err(config_error)?;
    }
    onboarding.revised_settings().map(drop)
}

/// Collects the paths and values in `after` that are new or changed.
fn collect_differences(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    path: &mut Vec<String>,
    changes: &mut Vec<(Vec<String>, Value)>,
) {
    let empty = Map::new();
    for (key, value) in after {
        path.push(key.clone());
        match (before.get(key), value) {
            (Some(same), value) if same == value => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                collect_differences(before, after, path, changes);
            }
            (None | Some(Value::Null), Value::Object(after)) if !after.is_empty() => {
                collect_differences(&empty, after, path, changes);
            }
            _ => changes.push((path.clone(), value.clone())),
        }
        path.pop();
    }
}
