//! Lets plugins ask for their settings through the hook `onboard_config`.

use bub_kernel::{Error, Result};
use bub_settings::EditError;
use serde_json::{Map, Value};

use super::{super::prompt, Onboarding};

/// Sets up one plugin: one with a channel that needs a token, or with the hook `onboard_config`.
pub(super) async fn set_up_plugin(onboarding: &mut Onboarding<'_>, name: &str) -> Result<()> {
    let with_hook = onboarding.framework.onboard_plugins();
    let channels = super::channels::names_to_set_up(onboarding)?;
    if channels.iter().any(|channel| channel == name) {
        super::channels::set_up_named(onboarding, name).await?;
    } else if !with_hook.iter().any(|plugin| plugin == name) {
        let mut available = vec!["builtin".to_owned()];
        available.extend(channels.into_iter().chain(with_hook));
        return Err(Error::not_found(format!(
            "No onboard_config hook found for plugin '{name}'. Available plugins: {}",
            available.join(", ")
        )));
    }
    call_plugins(onboarding, Some(name)).await
}

/// Lets all plugins ask for their settings.
pub(super) async fn set_up_plugins(onboarding: &mut Onboarding<'_>) -> Result<()> {
    call_plugins(onboarding, None).await
}

/// Calls each plugin with the configuration so far and merges its result. Keys that a plugin does not return are kept.
async fn call_plugins(onboarding: &mut Onboarding<'_>, only: Option<&str>) -> Result<()> {
    let config_error = |error: EditError| Error::config(error.to_string());
    let before = onboarding.file.parse().map_err(config_error)?;
    let (framework, config) = (onboarding.framework.clone(), Value::Object(before.clone()));
    // A plugin may read from the terminal without a time limit.
    let only = only.map(str::to_owned);
    let collect = move || framework.collect_onboard_config_of(only.as_deref(), config);
    let after = prompt::run_interruptible("", collect).await?;
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
