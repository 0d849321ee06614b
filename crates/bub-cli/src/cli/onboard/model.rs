//! The model, its provider, and what that one wants.

use std::sync::Arc;

use bub_kernel::{Error, Result};
use bub_model::settings::API_BASE;
use bub_model::{Catalog, ModelId, Models, ModelsReport};
use bub_settings::{ConfigFile, Settings};
use serde_json::Value;

use super::{
    super::{probe, prompt},
    Onboarding,
};

/// What was given on the command line.
pub(super) struct ModelArgs {
    pub(super) model: Option<String>,
    pub(super) base: Option<String>,
    pub(super) key: Option<String>,
}

/// What was answered the last time, and did not work: offered again.
#[derive(Default)]
struct RejectedModelInput {
    model: Option<String>,
    base: Option<String>,
    key: Option<String>,
}

impl RejectedModelInput {
    fn id(&self) -> Option<ModelId> {
        self.model.as_ref()?.parse().ok()
    }
}

/// Finds a model that answers, or that is to be saved all the same.
pub(super) async fn ask(onboarding: &mut Onboarding<'_>, mut given: ModelArgs) -> Result<()> {
    let mut tried = RejectedModelInput::default();
    loop {
        let before = onboarding.file.text().to_owned();
        let problem = match once(onboarding, &given, &mut tried).await {
            Ok(()) => return Ok(()),
            Err(error) if prompt::is_interruption(&error) || !onboarding.asks => return Err(error),
            Err(error) => onboarding
                .settings
                .redactor()
                .redact(error.message())
                .into_owned(),
        };
        prompt::print_stderr(&format!(
            "That does not work: {}\n",
            super::output::one_line(&problem)
        ));
        if !prompt::confirm("Try again with other answers?", true).await? {
            if prompt::confirm("Save it all the same?", false).await? {
                return Ok(());
            }
            return Err(prompt::interrupted());
        }
        onboarding.back_to(before);
        // Whatever came from the command line did not work.
        given = ModelArgs {
            model: None,
            base: None,
            key: None,
        };
    }
}

async fn once(
    onboarding: &mut Onboarding<'_>,
    given: &ModelArgs,
    tried: &mut RejectedModelInput,
) -> Result<()> {
    let models = models(onboarding)?;
    let report = models.report().await;
    let text = match &given.model {
        Some(text) => text.clone(),
        None if onboarding.asks => ask_model(onboarding, &models, &report, tried.id()).await?,
        // Also one that cannot be, which is told below.
        None => match onboarding.settings.text_at("model").or_else(|| {
            let choice = report.choice.as_ref().ok()?;
            Some(choice.model.as_ref()?.to_string())
        }) {
            Some(model) => model,
            None => {
                return Err(Error::config(
                    "no model is configured; name one with `--model`",
                ));
            }
        },
    };
    let id: ModelId = text
        .parse()
        .map_err(|error| Error::config(format!("{error}")))?;
    let name = id.provider().to_owned();
    let again = tried.id().is_some_and(|tried| tried.provider() == name);
    let last = if again {
        std::mem::take(tried)
    } else {
        RejectedModelInput::default()
    };
    *tried = RejectedModelInput {
        model: Some(text.clone()),
        ..RejectedModelInput::default()
    };
    onboarding.keep_apart(&name)?;
    let known = models.catalog().get(&name);
    // Choosing a provider must not give it the key of another one.
    let owner = models.plain_key_owner();
    let is_owner = owner.as_deref() == Some(known.map_or(&*name, |known| &known.name));
    let owner = owner.filter(|_| !is_owner);
    tried.base = match &given.base {
        Some(base) => Some(base.clone()),
        // A provider of one's own: without an address it would be refused later.
        None if onboarding.asks
            && (last.base.is_some()
                || known.is_none_or(|known| known.base_url.is_none())
                    && !has_base(onboarding, &name)?) =>
        {
            Some(prompt::line(&format!("base URL of {name}"), last.base.as_deref()).await?)
        }
        None => None,
    };
    tried.base.take_if(|base| base.is_empty());
    if let Some(base) = &tried.base {
        let setting = if known.is_some() {
            format!("api_base.{name}")
        } else {
            format!("providers.{name}.base_url")
        };
        onboarding.set(&setting, base)?;
    }
    if onboarding.settings.text_at("model").as_deref() != Some(&text) || given.model.is_some() {
        onboarding.set("model", &text)?;
    }
    if let Some(owner) = owner {
        refuse_foreign_key(onboarding, &name, &owner)?;
    }
    tried.key = match &given.key {
        Some(key) => Some(key.clone()),
        None => key(onboarding, &name, again, last.key).await?,
    };
    if let Some(key) = &tried.key {
        onboarding.set(&format!("api_key.{name}"), key)?;
    }
    let revised = onboarding.revised()?;
    // A mistake that can be seen from here is one also when nothing is tried.
    self::models(onboarding)?
        .check(&id)
        .map_err(|error| Error::config(error.to_string()))?;
    if onboarding.tries {
        if onboarding.asks {
            prompt::print_stderr(&format!("asking {id} … "));
        }
        probe::model(&revised, &id).await.map_err(|problem| {
            // The file does not have it yet.
            let place = revised.origin(&format!("api_key.{}", name.replace('-', "_")));
            let place = place
                .filter(|_| tried.key.is_some())
                .map(|place| place.to_string());
            let source = if given.key.is_some() {
                "standard input"
            } else {
                "your answer"
            };
            Error::config(
                place.map_or_else(|| problem.clone(), |place| problem.replace(&place, source)),
            )
        })?;
        if onboarding.asks {
            prompt::print_stderr("it answers\n");
        }
    }
    Ok(())
}

fn models(onboarding: &Onboarding<'_>) -> Result<Models> {
    let revised = onboarding.revised()?;
    let client = Arc::new(super::super::client(&revised));
    Models::new(revised, client).map_err(|error| Error::config(error.to_string()))
}

fn has_base(onboarding: &Onboarding<'_>, provider: &str) -> Result<bool> {
    Ok(onboarding.revised()?.get(&API_BASE).get(provider).is_some())
}

/// Asks for a provider and one of its models.
async fn ask_model(
    onboarding: &Onboarding<'_>,
    models: &Models,
    report: &ModelsReport,
    tried: Option<ModelId>,
) -> Result<String> {
    let current = onboarding
        .settings
        .text_at("model")
        .and_then(|text| text.parse::<ModelId>().ok());
    let chosen = report
        .choice
        .as_ref()
        .ok()
        .and_then(|choice| choice.model.clone())
        .or(current);
    let new = tried.as_ref().map(|id| id.provider().to_owned());
    let chosen = tried.or(chosen);
    let usable: Vec<_> = report
        .providers
        .iter()
        .filter(|provider| provider.usable)
        .map(|it| it.name.as_str())
        .collect();
    let all: Vec<_> = models
        .catalog()
        .iter()
        .map(|provider| provider.name.as_str())
        .collect();
    prompt::names("providers:", &all);
    if !usable.is_empty() {
        prompt::names("usable now:", &usable);
    }
    let default = chosen
        .as_ref()
        .map(ModelId::provider)
        .or(all.first().copied());
    let provider = provider(models.catalog(), default, new.as_deref()).await?;
    let same = chosen
        .as_ref()
        .filter(|id| id.provider() == provider)
        .map(|id| id.model().to_owned());
    let local = report
        .local_servers
        .iter()
        .find(|server| server.provider == provider);
    let local = local.and_then(|server| server.models.first().cloned());
    let usual = models
        .catalog()
        .get(&provider)
        .and_then(|known| known.default_model.clone());
    loop {
        let model = prompt::line(
            "model",
            same.as_ref()
                .or(local.as_ref())
                .or(usual.as_ref())
                .map(String::as_str),
        )
        .await?;
        if !model.is_empty() {
            return Ok(format!("{provider}:{model}"));
        }
    }
}

/// One that is known, or was agreed upon before, or is now.
async fn provider(
    catalogue: &Catalog,
    default: Option<&str>,
    agreed: Option<&str>,
) -> Result<String> {
    loop {
        let name = prompt::line("provider", default)
            .await?
            .to_ascii_lowercase();
        if let Some(known) = catalogue.get(&name) {
            return Ok(known.name.clone());
        }
        if agreed == Some(&name) {
            return Ok(name);
        }
        let meant = catalogue
            .similar(&name)
            .map_or(String::new(), |meant| format!(", did you mean `{meant}`?"));
        prompt::print_stderr(&format!("There is no provider `{name}`{meant}\n"));
        if !name.is_empty()
            && prompt::confirm(&format!("Add `{name}` as one of your own?"), false).await?
        {
            return Ok(name);
        }
    }
}

/// The provider that a plain key in the file belongs to when no model was configured.
pub(in super::super) fn owner(settings: &Settings, file: &ConfigFile) -> Option<String> {
    let file = file.value().ok()?;
    let is_plain =
        |value: &Value| !matches!(value, Value::Null | Value::Object(_) | Value::Array(_));
    let has_one = ["api_key", "api_key_command"]
        .iter()
        .any(|name| file.get(*name).is_some_and(is_plain));
    let catalogue = Catalog::new(settings).ok().filter(|_| has_one)?;
    let key = file.get("api_key").and_then(Value::as_str);
    catalogue.key_owner(key).map(|owner| owner.name.clone())
}

/// A plain key that belonged to another provider until now is not given to this one. What stands in the environment is
/// stronger than a key that would be asked for, so that would not help.
fn refuse_foreign_key(onboarding: &Onboarding<'_>, provider: &str, owner: &str) -> Result<()> {
    let Some(source) = models(onboarding)?.plain_key_source(provider) else {
        return Ok(());
    };
    Err(Error::config(format!(
        "the key from {source} belongs to `{owner}` and is not sent to `{provider}`; say whose it is: \
         `api_key.{owner}` or `api_key.{provider}`, as a variable BUB_<PROVIDER>_API_KEY"
    )))
}

/// The key, where one is wanted and none is there, or where the one that is there may be wrong.
async fn key(
    onboarding: &Onboarding<'_>,
    provider: &str,
    again: bool,
    last: Option<String>,
) -> Result<Option<String>> {
    let models = models(onboarding)?;
    let has_key = last.is_some() || models.key_source(provider).is_some();
    if !onboarding.asks {
        return Ok(None);
    }
    if !again {
        let report = models.report().await;
        let known = report.providers.iter().find(|known| known.name == provider);
        if has_key || known.is_none_or(|known| known.usable) {
            return Ok(None);
        }
    }
    let otherwise = if has_key {
        "Enter for the same again"
    } else {
        "Enter for none"
    };
    let key = prompt::secret(&format!(
        "API key of {provider} (is not shown; {otherwise})"
    ))
    .await?;
    Ok(if key.is_empty() { last } else { Some(key) })
}
