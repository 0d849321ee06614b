//! Checks whether a model is configured, is within its daily limit, and answers.

use bub_agent::usage::DailyLimit;
use bub_tape::{Durability, FileStore};

use super::{
    super::{models::NO_MODEL_TEXT, probe},
    CheckContext, Finding,
};

const DAILY_LIMIT_FIX: &str =
    "no turn runs until then; see `usage.daily_tokens` and `usage.daily_cost`";
const CHOOSE_MODEL_FIX: &str = "run `bub onboard` to set one up, or `bub models` to list models";

pub(super) async fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    // The check `config` reports invalid providers.
    let Ok(models) = super::super::models(settings, check_context.logins) else {
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
            (Some(model), None) => match probe::probe_model(settings, &models, model).await {
                Ok(()) => Finding::ok(format!("{model} answers ({})", choice.reason)),
                Err(problem) => Finding::error(
                    format!("{model} ({}): {problem}", choice.reason),
                    CHOOSE_MODEL_FIX,
                ),
            },
        },
    };
    let mut findings = vec![model_finding];
    if let Some(model) = report.choice.ok().and_then(|choice| choice.model) {
        let store = FileStore::new(settings.home().join("tapes"), Durability::Os);
        let limit = DailyLimit::new(settings);
        let checked = limit.check(&[model], models.catalog(), Some(&store)).await;
        let error = checked.err();
        findings.extend(error.map(|error| Finding::error(error.message(), DAILY_LIMIT_FIX)));
    }
    for (model, problem) in report.fallbacks {
        findings.extend(problem.map(|problem| {
            let text = format!("fallback {model} is unavailable: {problem}");
            Finding::warning(text, "correct or remove it in `fallback_models`")
        }));
    }
    let notes = report.notes.into_iter();
    findings.extend(notes.map(|note| Finding::warning(note, "see `bub models`")));
    findings
}
