//! `bub replay`: runs the messages of a recorded session again.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use bub::{
    AppCommand, CommandContext, Error, Framework, PLUGIN_SELECTION, Result, SessionId, SettingFlag,
    Tape, clap,
    kernel::tape_error,
    model::Catalog,
    output::{print, print_stderr},
    tape::{EntryRange, TapeListFilter},
};

use crate::{
    plugin::ActiveReplay,
    recording::Recording,
    report::{ReplayReport, to_html, to_text},
    session::{ReplayOptions, ReplaySession, ToolSource},
    settings::ReplaySettings,
};

#[derive(clap::Args)]
#[command(
    long_about = "Run the messages of a recorded session again, on a copy of its tape in memory, and show what differs. \
                  Without `--model`, the answers come from the tape, too: then a difference comes from a changed prompt, \
                  plugin, tool or version of bub.",
    after_help = "Exit codes: 0 no difference, 1 a difference or a failure, 2 invalid arguments"
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
    /// Installed plugin to use although it is disabled; `!NAME` omits an enabled one; can be repeated
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
    let mut flags = vec![SettingFlag::new(ReplaySettings::SESSION, "replay", "true")];
    if let Some(plugins) = matches.get_many::<String>("plugin") {
        let plugins: Vec<&String> = plugins.collect();
        let list = serde_json::json!(plugins).to_string();
        flags.push(SettingFlag::new(PLUGIN_SELECTION, "--plugin", list));
    }
    flags
}

async fn run(context: CommandContext, args: ReplayArgs, active: ActiveReplay) -> Result<ExitCode> {
    let (framework, settings) = (&context.framework, &context.settings);
    let catalog = Catalog::new(settings).map_err(|error| Error::config(error.to_string()))?;
    let system = args.system.as_ref().map(|path| {
        let text = std::fs::read_to_string(path);
        text.map_err(|error| {
            Error::invalid_input(format!("cannot read {}: {error}", path.display()))
        })
    });
    let (session_id, recording) = framework
        .run_scoped(read_session(framework, &args.session))
        .await?;
    let first_turn = match &args.from {
        Some(from) => recording.first_turn_after(from)?,
        None => 0,
    };
    let options = ReplayOptions {
        model: args.model,
        system: system.transpose()?,
        tools: args.tools,
        first_turn,
    };
    let session = ReplaySession::new(session_id.clone(), Arc::new(recording), options);
    let session = Arc::new(session);
    active.start(Arc::clone(&session));
    let replay = async {
        session.run(framework).await?;
        session.replayed(framework).await
    };
    let replayed = framework.run_scoped(replay).await?;
    let report = ReplayReport::new(&session_id, &session, &replayed, &catalog);
    let text = match args.format.as_str() {
        "json" => format!("{:#}\n", serde_json::to_value(&report)?),
        "html" => to_html(&report),
        _ => to_text(&report),
    };
    let text = settings.redactor().redact(&text);
    match &args.output {
        Some(path) => {
            std::fs::write(path, text.as_bytes())?;
            print_stderr(&format!("wrote the report to {}\n", path.display()));
        }
        None => drop(print(&text)?),
    }
    Ok(ExitCode::from(u8::from(report.first_divergence.is_some())))
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
    let entries = tape.entries(EntryRange::ALL).await.map_err(tape_error)?;
    let recording = Recording::new(entries, &*tape.store().blobs()).await;
    if recording.entries().is_empty() {
        return Err(unknown());
    }
    if recording.turn_count() == 0 {
        let text = format!("nothing to replay: session `{name}` has no turn of the agent");
        return Err(Error::invalid_input(text));
    }
    Ok((id, recording))
}
