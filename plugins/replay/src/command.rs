//! `bub replay`: runs the messages of a recorded session again.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use bub::{
    AppCommand, CommandContext, Error, Framework, OMIT_PLUGINS, PLUGIN_SELECTION, Result,
    SessionId, SettingFlag, Settings, Tape, clap,
    kernel::{PluginState, settings::media_limit, tape_error},
    model::{Catalog, ModelId, ParseModelIdError},
    output::{print, print_stderr},
    plugin::{DamagedRecord, InstalledPlugins},
    signals,
    tape::{EntryRange, TapeListFilter},
};

use crate::{
    files::{FileResultExt as _, OutputFile},
    plugin::{ActiveReplay, ReplayPlugin},
    recording::Recording,
    report::{PluginFailure, ReplayReport, to_html, to_text},
    session::{ReplayOptions, ReplaySession, ToolSource},
    settings::ReplaySettings,
};

#[derive(clap::Args)]
#[command(
    long_about = "Run the messages of a recorded session again, on a copy of its tape in memory, and show what differs. \
                  Without `--model`, the answers come from the tape, too: then a difference comes from a changed prompt, \
                  plugin, tool or version of bub. Unless `--tools live` is given, only plugins that `--plugin` names start.",
    after_help = "Exit codes: 0 no difference, 1 a difference, a failed plugin or missing media, 2 invalid arguments"
)]
struct ReplayArgs {
    /// Session id or tape name
    session: String,
    /// First turn to run again: the first one after this anchor or entry id
    #[arg(long, value_name = "ANCHOR|ENTRY")]
    from: Option<String>,
    /// Model that answers, as provider:model [default: the tape]
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Option<String>,
    /// File with a system prompt that replaces the one of bub
    #[arg(long, value_name = "FILE")]
    system: Option<PathBuf>,
    /// Installed plugin to use; `!NAME` omits an enabled one with `--tools live`; can be repeated
    #[arg(long, value_name = "NAME")]
    plugin: Vec<String>,
    /// Where the results of tool calls come from
    #[arg(long, value_enum, default_value_t)]
    tools: ToolSource,
    /// Format of the report
    #[arg(long, value_parser = ["text", "json", "html"], default_value = "text")]
    format: String,
    /// File for the report [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Returns the command `bub replay`.
pub(crate) fn command(active: &ActiveReplay) -> AppCommand {
    let active = active.clone();
    AppCommand::with_args(
        "replay",
        "Run a recorded session again and show what differs",
        move |context, args| run(context, args, active.clone()),
    )
    .sets_settings(setting_flags)
}

fn setting_flags(matches: &clap::ArgMatches) -> Vec<SettingFlag> {
    let named = matches.get_many::<String>("plugin");
    let named = named.into_iter().flatten().map(String::as_str);
    // A plugin is a process. Without `--tools live`, only those that the user names may start.
    let is_live = matches.get_one::<ToolSource>("tools") == Some(&ToolSource::Live);
    let omit_others = (!is_live).then_some(OMIT_PLUGINS);
    let plugins: Vec<&str> = omit_others.into_iter().chain(named).collect();
    let list = serde_json::json!(plugins).to_string();
    vec![
        SettingFlag::new(ReplaySettings::SESSION, "replay", "true"),
        SettingFlag::new(PLUGIN_SELECTION, "--plugin", list),
    ]
}

/// Checks that the named plugins are installed, and reports the enabled ones that the replay does not use. Returns the
/// names of the installed ones.
fn check_plugins(settings: &Settings, args: &ReplayArgs) -> Result<Vec<String>> {
    let installed = InstalledPlugins::load(settings.home())?;
    let names: Vec<&str> = installed
        .plugins
        .iter()
        .map(|plugin| plugin.manifest.name.as_str())
        .chain(installed.damaged.iter().map(DamagedRecord::name))
        .collect();
    for name in &args.plugin {
        if !names.contains(&name.strip_prefix('!').unwrap_or(name)) {
            return Err(Error::invalid_input(format!(
                "unknown plugin `{name}`; run `bub plugin list` to list plugins"
            )));
        }
    }
    let enabled = installed.plugins.iter().filter(|plugin| plugin.enabled);
    let unused: Vec<&str> = enabled
        .map(|plugin| plugin.manifest.name.as_str())
        .filter(|name| !args.plugin.iter().any(|named| named == name))
        .collect();
    if args.tools != ToolSource::Live && !unused.is_empty() {
        print_stderr(&format!(
            "not started: {}; to use a plugin, pass `--plugin NAME`\n",
            unused.join(", ")
        ));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Returns the failures of installed plugins. They are isolated in a turn, but a replay without a plugin that should be
/// part of it proves nothing.
fn plugin_failures(framework: &Framework, installed: &[String]) -> Vec<PluginFailure> {
    let loaded = framework.plugins().iter();
    let not_loaded = loaded.filter_map(|status| match &status.state {
        PluginState::Failed(error) => Some((Arc::clone(&status.name), error.clone())),
        _ => None,
    });
    let failed = framework.hooks().failures().into_iter();
    let failed = failed.map(|(plugin, error)| (plugin, error.message().to_owned()));
    let all = not_loaded.chain(failed);
    let all = all.filter(|(plugin, _)| installed.iter().any(|name| **name == **plugin));
    all.map(|(plugin, error)| {
        let prefix = format!("plugin {plugin}: ");
        let error = error.strip_prefix(&prefix).unwrap_or(&error).to_owned();
        let plugin = plugin.to_string();
        PluginFailure { plugin, error }
    })
    .collect()
}

async fn run(context: CommandContext, args: ReplayArgs, active: ActiveReplay) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let catalog = Catalog::new(settings).map_err(|error| Error::config(error.to_string()))?;
    let is_named = args.plugin.iter().any(|name| !name.starts_with('!'));
    let has_plugins = is_named || (args.tools == ToolSource::Live && has_plugins(settings)?);
    args.model
        .iter()
        .try_for_each(|model| check_model(model, &catalog, has_plugins))?;
    let installed = check_plugins(settings, &args)?;
    let system = args.system.as_ref();
    let system = system.map(|path| std::fs::read_to_string(path).at("read", path));
    let system = system.transpose()?;
    let source = async {
        let session = read_session(framework, &args.session).await?;
        Ok((session, framework.tape_store()))
    };
    let ((session_id, recording), store) = framework.run_scoped(source).await?;
    let first_turn = match &args.from {
        Some(from) => recording.first_turn_after(from)?,
        None => 0,
    };
    let options = ReplayOptions {
        model: args.model,
        system,
        tools: args.tools,
        first_turn,
    };
    // From here on, a signal drops the file, which removes it.
    let stop = signals::listen_for_stop();
    let output = args.output.as_deref().map(OutputFile::create).transpose()?;
    let session = ReplaySession::new(session_id.clone(), Arc::new(recording), options);
    let session = Arc::new(session.with_source(store));
    active.start(Arc::clone(&session));
    let replay = async {
        session.run(framework).await?;
        session.replayed(framework).await
    };
    let stopped = stop.token();
    let replayed = tokio::select! {
        replayed = framework.run_scoped(replay) => replayed?,
        () = stopped.cancelled() => return Ok(stop.exit_code()),
    };
    let failures = plugin_failures(framework, &installed);
    let report = ReplayReport::new(&session_id, &session, &replayed, &catalog, failures);
    let text = match args.format.as_str() {
        "json" => format!("{:#}\n", serde_json::to_value(&report)?),
        "html" => to_html(&report),
        _ => to_text(&report),
    };
    let text = settings.redactor().redact(&text);
    let is_text_on_stdout = args.format == "text" && args.output.is_none();
    match output {
        Some(output) => {
            let path = output.write(&text)?;
            print_stderr(&format!("wrote the report to {}\n", path.display()));
        }
        None => drop(print(&text)?),
    }
    // On stderr, too, because the report may be in a file or read by a program.
    let problem = report.problems().into_iter().next();
    let is_same = report.first_divergence.is_none() && problem.is_none();
    if let (Some(problem), false) = (problem, is_text_on_stdout) {
        return Err(Error::unknown(problem));
    }
    Ok(ExitCode::from(u8::from(!is_same)))
}

/// Returns whether a plugin is installed and enabled.
pub(crate) fn has_plugins(settings: &Settings) -> Result<bool> {
    let installed = InstalledPlugins::load(settings.home())?;
    Ok(installed.plugins.iter().any(|plugin| plugin.enabled))
}

/// Checks the name of a model, and its provider unless a plugin may answer for it.
pub(crate) fn check_model(model: &str, catalog: &Catalog, has_plugins: bool) -> Result<()> {
    let parsed: std::result::Result<ModelId, ParseModelIdError> = model.parse();
    let advice = "run `bub models` to list models";
    let model = parsed.map_err(|error| Error::invalid_input(format!("{error}; {advice}")))?;
    let provider = model.provider();
    if has_plugins || provider == ReplayPlugin::NAME || catalog.get(provider).is_some() {
        return Ok(());
    }
    Err(Error::invalid_input(format!(
        "unknown provider `{provider}`; {advice}"
    )))
}

/// Reads the tape of a session, or the tape with this name.
pub(crate) async fn read_session(
    framework: &Framework,
    name: &str,
) -> Result<(SessionId, Recording)> {
    let unknown = || {
        Error::invalid_input(format!(
            "unknown session `{name}`; run `bub tape list` to list sessions"
        ))
    };
    let id = SessionId::from(name);
    let tape = framework.session_tape(&id)?.ok_or_else(unknown)?;
    let names = tape
        .store()
        .list(TapeListFilter::Sessions)
        .await
        .map_err(tape_error)?;
    let exact = names.into_iter().find(|tape| tape.as_str() == name);
    let (id, tape) = match exact {
        Some(exact) => {
            let tape = Tape::new(Arc::clone(tape.store()), exact);
            let info = tape.summary().await.map_err(tape_error)?.session;
            (info.map_or(id, |info| info.session_id.into()), tape)
        }
        None => (id, tape),
    };
    let has_holder = || tape.store().lease_holder(tape.name());
    let is_running = has_holder().await.map_err(tape_error)?.is_some();
    let entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
    let recording = Recording::new(entries, &*tape.store().blobs()).await;
    let mut recording = recording.with_media(media_limit(framework.settings()));
    if is_running || has_holder().await.map_err(tape_error)?.is_some() {
        recording = recording.of_running_session();
    }
    if recording.entries().is_empty() {
        return Err(unknown());
    }
    let turns = recording.turns.iter().enumerate();
    let skipped: Vec<String> = turns
        .map_while(|(index, turn)| {
            let reason = Recording::not_replayed(turn)?;
            Some(format!("; turn {}: {reason}", index + 1))
        })
        .collect();
    if skipped.len() == recording.turn_count() {
        return Err(Error::invalid_input(format!(
            "nothing to replay: session `{name}` has no turn of the agent{}",
            skipped.concat()
        )));
    }
    Ok((id, recording))
}
