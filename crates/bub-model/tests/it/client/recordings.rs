//! Checks that every recorded error body is classified as its manifest row requires.

use bub_model::RecoveryAction;
use bub_model::classify::classify;
use serde_json::Value;

/// Returns the action that a label of the manifest requires, or `None` if the label implies no action.
fn demanded(label: &str) -> Option<&'static [RecoveryAction]> {
    use RecoveryAction::{GiveUp, NextModel, Reauthenticate, Retry, ShrinkContext};
    Some(match label {
        "context_overflow" | "request_too_large_for_tpm" => &[ShrinkContext],
        "not_context_overflow" => &[GiveUp, NextModel],
        "auth" => &[Reauthenticate],
        "rate_limit" | "overloaded" => &[Retry],
        "quota" | "not_retryable" | "model_not_found" => &[NextModel],
        "orphan_tool_use" => &[GiveUp],
        _ => return None,
    })
}

#[bub_testkit::needs_fixtures]
#[test]
fn every_recorded_error_has_the_right_class() {
    let root = bub_testkit::fixtures("wire");
    let manifest = std::fs::read_to_string(root.join("manifest.jsonl")).unwrap();
    let rows: Vec<Value> = manifest
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for row in rows
        .iter()
        .filter(|row| row["file"].as_str().unwrap().starts_with("errors/"))
    {
        let file = row["file"].as_str().unwrap();
        let body = std::fs::read(root.join(file)).unwrap();
        let status = row["status"]
            .as_u64()
            .map(|status| u16::try_from(status).unwrap());
        let error = classify(status, None, &body);
        let labels: Vec<&str> = row["shows"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        println!(
            "{:>4} {:<15} {:<50} {}",
            status.unwrap_or(0),
            format!("{:?}", error.action),
            labels.join(","),
            error.message
        );
        checked += 1;
        assert!(
            !error.message.is_empty()
                && !error.message.contains('\n')
                && !error.message.contains("</"),
            "{file}: {error}"
        );
        // A row without such a label is an invalid request.
        let unlabelled: &[RecoveryAction] = &[
            RecoveryAction::GiveUp,
            RecoveryAction::NextModel,
            RecoveryAction::Reauthenticate,
            RecoveryAction::Retry,
        ];
        let mut demands: Vec<&[RecoveryAction]> =
            labels.iter().filter_map(|label| demanded(label)).collect();
        if demands.is_empty() {
            demands.push(unlabelled);
        }
        if demands
            .iter()
            .any(|allowed| !allowed.contains(&error.action))
        {
            wrong.push(format!("{file} {labels:?} → {:?}", error.action));
        }
    }
    println!("{checked} recorded errors");
    assert!(checked > 0);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
