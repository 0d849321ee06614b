//! Checks the model: whether one is configured, within its daily limit, and answers.

use std::sync::Arc;

use bub_model::Models;

use super::{
    super::{models::NO_MODEL_TEXT, probe},
    CheckContext, Finding,
};

const DAILY_LIMIT_FIX: &str =
    "no turn runs until then; see `usage.daily_tokens` and `usage.daily_cost`";
const CHOOSE_MODEL_FIX: &str = "run `bub onboard` to set one up, or `bub models` to list models";

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    // The check of the settings reports invalid providers.
    let client = Arc::new(super::super::model_client(settings));
    let Ok(models) = Models::new(Arc::clone(settings), client) else {
        return Vec::new();
    };
    let report = models.report().await;
    let model_finding = match &report.choice {
        Err(error) => Finding::error(error.to_string(), CHOOSE_MODEL_FIX),
        Ok(choice) => match (&choice.model, &report.problem) {
            (None, _) => Finding::warning(NO_MODEL_TEXT, CHOOSE_MODEL_FIX),
            (Some(model), Some(problem)) => {
                Finding::error(format!("{model}: {problem}"), CHOOSE_MODEL_FIX)
            }
            (Some(model), None) if check_context.is_offline => {
                Finding::ok(format!("{model} ({}); not tested", choice.reason))
            }
            (Some(model), None) => match probe::probe_model(settings, model).await {
                Ok(()) => Finding::ok(format!("{model} answers ({})", choice.reason)),
                Err(problem) => Finding::error(
                    format!("{model} ({}): {problem}", choice.reason),
                    CHOOSE_MODEL_FIX,
                ),
            },
        },
    };
    let mut findings = vec![model_finding];
    let model = report
        .choice
        .as_ref()
        .ok()
        .and_then(|choice| choice.model.clone());
    if let Some(model) = model {
        let limit_error =
            bub_agent::usage::daily_limit_error(settings, &[model], models.catalog()).await;
        findings.extend(limit_error.map(|error| Finding::error(error, DAILY_LIMIT_FIX)));
    }
    let fallbacks = report
        .fallbacks
        .iter()
        .filter_map(|(model, problem)| Some((model, problem.as_ref()?)));
    findings.extend(fallbacks.map(|(model, problem)| {
        Finding::warning(
            format!("fallback {model} is unavailable: {problem}"),
            "correct or remove it in `fallback_models`",
        )
    }));
    findings.extend(
        report
            .notes
            .iter()
            .map(|note| Finding::warning(note, "see `bub models`")),
    );
    findings
}
