//! The model: chosen, allowed, and answering.

use std::sync::Arc;

use bub_model::Models;

use super::{super::probe, CheckContext, Finding};

const DAILY_LIMIT_FIX: &str =
    "no turn runs until then; see `usage.daily_tokens` and `usage.daily_cost`";
const CHOOSE_MODEL_FIX: &str = "`bub onboard` sets one up; `bub models` lists what there is";

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    // What is wrong with the providers is told with the configuration.
    let client = Arc::new(super::super::client(settings));
    let Ok(models) = Models::new(Arc::clone(settings), client) else {
        return Vec::new();
    };
    let report = models.report().await;
    let chosen = match &report.choice {
        Err(error) => Finding::error(error.to_string(), CHOOSE_MODEL_FIX),
        Ok(choice) => match (&choice.model, &report.problem) {
            (None, _) => Finding::warning(format!("none: {}", choice.reason), CHOOSE_MODEL_FIX),
            (Some(model), Some(problem)) => {
                Finding::error(format!("{model}: {problem}"), CHOOSE_MODEL_FIX)
            }
            (Some(model), None) if check_context.is_offline => {
                Finding::ok(format!("{model} ({}); not asked", choice.reason))
            }
            (Some(model), None) => match probe::model(settings, model).await {
                Ok(()) => Finding::ok(format!("{model} answers ({})", choice.reason)),
                Err(problem) => Finding::error(
                    format!("{model} ({}): {problem}", choice.reason),
                    CHOOSE_MODEL_FIX,
                ),
            },
        },
    };
    let mut findings = vec![chosen];
    let model = report
        .choice
        .as_ref()
        .ok()
        .and_then(|choice| choice.model.clone());
    if let Some(model) = model {
        let refusal =
            bub_agent::usage::daily_limit_error(settings, &[model], models.catalog()).await;
        findings.extend(refusal.map(|refusal| Finding::error(refusal, DAILY_LIMIT_FIX)));
    }
    let fallbacks = report
        .fallbacks
        .iter()
        .filter_map(|(model, problem)| Some((model, problem.as_ref()?)));
    findings.extend(fallbacks.map(|(model, problem)| {
        Finding::warning(
            format!("fallback {model} cannot be used: {problem}"),
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
