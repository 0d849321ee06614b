//! The model: chosen, allowed, and answering.

use std::sync::Arc;

use bub_model::Models;

use super::{super::probe, Finding, Patient};

const CAP: &str = "no turn runs until then; see `usage.daily_tokens` and `usage.daily_cost`";
const CHOOSE: &str = "`bub onboard` sets one up; `bub models` lists what there is";

pub(super) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let settings = &patient.settings;
    // What is wrong with the providers is told with the configuration.
    let client = Arc::new(super::super::client(settings));
    let Ok(models) = Models::new(Arc::clone(settings), client) else {
        return Vec::new();
    };
    let report = models.report().await;
    let chosen = match &report.choice {
        Err(error) => Finding::broken(error.to_string(), CHOOSE),
        Ok(choice) => match (&choice.model, &report.problem) {
            (None, _) => Finding::doubtful(format!("none: {}", choice.why), CHOOSE),
            (Some(model), Some(problem)) => Finding::broken(format!("{model}: {problem}"), CHOOSE),
            (Some(model), None) if patient.is_offline => {
                Finding::fine(format!("{model} ({}); not asked", choice.why))
            }
            (Some(model), None) => match probe::model(settings, model).await {
                Ok(()) => Finding::fine(format!("{model} answers ({})", choice.why)),
                Err(problem) => {
                    Finding::broken(format!("{model} ({}): {problem}", choice.why), CHOOSE)
                }
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
        let refusal = bub_agent::usage::refusal(settings, &[model], models.catalogue()).await;
        findings.extend(refusal.map(|refusal| Finding::broken(refusal, CAP)));
    }
    let fallbacks = report
        .fallbacks
        .iter()
        .filter_map(|(model, problem)| Some((model, problem.as_ref()?)));
    findings.extend(fallbacks.map(|(model, problem)| {
        Finding::doubtful(
            format!("fallback {model} cannot be used: {problem}"),
            "correct or remove it in `fallback_models`",
        )
    }));
    findings.extend(
        report
            .notes
            .iter()
            .map(|note| Finding::doubtful(note, "see `bub models`")),
    );
    findings
}
