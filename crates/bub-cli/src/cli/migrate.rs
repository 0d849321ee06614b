//! `bub migrate`: shows what of an existing home is used as it is, what differs, and what to do. `docs/migrate.md` explains
//! the rows.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::{AppCommand, CommandContext, prompt, trust::describe_items};
use bub_agent::{Skills, policy::Policy, settings::AgentSettings};
use bub_gateway::{pairing::Pairings, settings::ChannelSettings};
use bub_kernel::{Error, ErrorKind, Result, Role, settings::OWNERS, tape_error};
use bub_plugin::{InstalledPlugins, quote_for_shell};
use bub_settings::{LookupValue, SettingSource, SettingValue};
use bub_tape::{TapeListFilter, TapeName};
use bub_terminal::Style;
use serde_json::{Value, json};

use super::{
    chat::session::{DEFAULT_SESSION, FORMER_SESSION},
    gateway::service_file,
    listing::{Listing, Table, cell},
    output, probe,
    tape::text::format_count,
    tape_store,
    trust::trust_workspace,
};

/// Show what of an existing home is used, what differs, and what to do
///
/// For homes of the Python version and of earlier releases. Changes nothing, unless you pass `--apply`.
#[derive(clap::Args)]
struct MigrateArgs {
    #[command(flatten)]
    steps: ApplyArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ApplyArgs {
    /// Run the commands of the report, one after another. Asks before each
    #[arg(long, conflicts_with = "json")]
    apply: bool,
    /// Run the commands without asking, except `bub trust`
    #[arg(long, short, requires = "apply")]
    yes: bool,
    /// Trust the files of the workspace without asking
    #[arg(long, requires = "apply")]
    trust: bool,
}

/// What happens to a part of the home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MigrationState {
    /// It is used as it is.
    Used,
    /// It is used, but works differently.
    Differs,
    /// The user has to do something.
    ToDo,
}

/// The name of the chat among the channels of the Python version.
const CHAT_CHANNEL: &str = "cli";

/// One row of the report.
struct MigrationRow {
    topic: &'static str,
    state: MigrationState,
    text: String,
    /// Arguments of the command that does what is to be done.
    command: Option<Vec<String>>,
}

/// The rows of the report.
#[derive(Default)]
struct MigrationReport(Vec<MigrationRow>);

impl MigrationReport {
    fn add(&mut self, topic: &'static str, state: MigrationState, text: impl Into<String>) {
        self.0.push(MigrationRow {
            topic,
            state,
            text: text.into(),
            command: None,
        });
    }

    fn add_step(&mut self, topic: &'static str, text: impl Into<String>, command: &[&str]) {
        self.add(topic, MigrationState::ToDo, text);
        if let Some(row) = self.0.last_mut() {
            row.command = Some(command.iter().map(|word| (*word).to_owned()).collect());
        }
    }

    fn steps(&self) -> impl Iterator<Item = &MigrationRow> {
        let is_step = |row: &&MigrationRow| row.state == MigrationState::ToDo;
        self.0.iter().filter(is_step)
    }

    fn commands(&self) -> impl Iterator<Item = &[String]> {
        self.0.iter().filter_map(|row| row.command.as_deref())
    }
}

/// Returns the command.
pub(super) fn command() -> AppCommand {
    let about = "Show what of an existing home is used, what differs, and what to do";
    AppCommand::with_args("migrate", about, run)
        .allow_invalid_settings()
        .manages_trust()
}

async fn run(context: CommandContext, args: MigrateArgs) -> Result<ExitCode> {
    let mut report = MigrationReport::default();
    add_home(context.settings.home(), &mut report)?;
    add_settings(&context, &mut report);
    add_plugins(&context, &mut report)?;
    add_workspace(&context, &mut report);
    let framework = context.framework.clone();
    let tapes = framework.run_scoped(add_tapes(&context, &mut report));
    tapes.await?;
    add_channels(&context, &mut report)?;
    add_gateway(&context, &mut report)?;
    let settings = &context.settings;
    if args.json {
        let text = format!("{:#}\n", to_json(&report));
        return output::print_untrusted(&settings.redactor().redact(&text));
    }
    let args = args.steps;
    if args.apply {
        args.check_can_ask(&report)?;
    }
    let code = list_rows(&report, args.apply).print(settings)?;
    if !args.apply {
        return Ok(code);
    }
    let total = report.steps().count();
    let mut remaining = total;
    for command in report.commands() {
        notice!("\n{}", shown_command(command));
        let confirmed = args.confirm_step(&context, command).await;
        let done = total - remaining;
        if done > 0 && confirmed.as_ref().is_err_and(prompt::is_interruption) {
            let done = format_count(done, "step is", "steps are");
            let text = format!("Stopped; {done} done, {remaining} to do; see `bub migrate`.");
            return Err(Error::new(ErrorKind::Cancelled, text));
        }
        if !confirmed? {
            notice!("skipped");
            continue;
        }
        if is_trust(command) {
            let trust = settings.workspace_trust();
            // What is trusted is what was shown, also if a file has changed since.
            let text = trust_workspace(trust, settings.trust_report().clone())?;
            output::print(&text)?;
        } else {
            let status = run_program(framework.workspace(), command).await?;
            if !status.success() {
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                return Ok(ExitCode::from(code.unwrap_or(1)));
            }
        }
        remaining -= 1;
    }
    if remaining > 0 {
        let count = format_count(remaining, "step remains", "steps remain");
        notice!("\n{count}; `bub migrate` shows what to do");
    }
    Ok(ExitCode::SUCCESS)
}

impl ApplyArgs {
    /// Fails if a step needs a question that cannot be asked, before any step is done.
    fn check_can_ask(&self, report: &MigrationReport) -> Result<()> {
        if prompt::has_terminal() {
            return Ok(());
        }
        if !self.yes && report.commands().any(|command| !is_trust(command)) {
            return Err(Error::config(
                "`--apply` asks before each command, and the process has no terminal; add `--yes` to run them without asking",
            ));
        }
        if !self.trust && report.commands().any(is_trust) {
            return Err(Error::config(
                "`--apply` asks whether to trust the files of the workspace, and the process has no terminal; look at them, and \
                 add `--trust` to trust them",
            ));
        }
        Ok(())
    }

    /// Shows what a step changes, and asks the user unless an option has the answer.
    async fn confirm_step(&self, context: &CommandContext, command: &[String]) -> Result<bool> {
        if !is_trust(command) {
            return Ok(self.yes || prompt::confirm("Run this command?", false).await?);
        }
        let items = describe_items(context.settings.trust_report(), true);
        notice!(
            "These files of the workspace change how bub works:\n{}",
            items.trim_end()
        );
        Ok(self.trust || prompt::confirm("Trust these files?", false).await?)
    }
}

fn is_trust(command: &[String]) -> bool {
    command == ["trust"]
}

/// Returns a command as it is typed in a shell.
fn shown_command(command: &[String]) -> String {
    let words = command.iter().map(|word| quote_for_shell(Path::new(word)));
    let words = words.collect::<Vec<_>>().join(" ");
    output::sanitize_line(&format!("bub {words}"))
}

/// Runs a command of this program in the workspace.
async fn run_program(workspace: &Path, command: &[String]) -> Result<std::process::ExitStatus> {
    let program = std::env::current_exe().map_err(|error| Error::config(error.to_string()))?;
    let mut process = tokio::process::Command::new(program);
    process.arg("--workspace").arg(workspace);
    let status = process.args(command).status().await;
    status.map_err(|error| Error::config(error.to_string()))
}

/// Reports the home, and whether this user can use it.
///
/// # Errors
///
/// Fails if the home cannot be read.
fn add_home(home: &Path, report: &mut MigrationReport) -> Result<()> {
    let shown = home.display();
    match fs::read_dir(home) {
        Ok(_) => report.add("home", MigrationState::Used, shown.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = "does not exist; set BUB_HOME to an existing home, or run `bub onboard` for a new one";
            report.add("home", MigrationState::ToDo, format!("{shown}: {text}"));
            return Ok(());
        }
        Err(error) => {
            return Err(Error::config(format!(
                "home {shown} cannot be read: {error}; check its permissions, or set BUB_HOME"
            )));
        }
    }
    let owner = fs::metadata(home).map_or(0, |metadata| metadata.uid());
    if owner != rustix::process::geteuid().as_raw() {
        let text = format!("{shown}: belongs to another user (id {owner})");
        report.add("home", MigrationState::Differs, text);
    }
    if let Err(error) = rustix::fs::access(home, rustix::fs::Access::WRITE_OK) {
        let text = format!("{shown}: cannot be written: {error}; set BUB_HOME to another home");
        report.add("home", MigrationState::ToDo, text);
    }
    Ok(())
}

fn add_settings(context: &CommandContext, report: &mut MigrationReport) {
    use MigrationState::{Differs, ToDo, Used};
    let settings = &context.settings;
    let file = settings.config_file();
    if file.exists() {
        let is_in_file =
            |entry: &SettingValue<'_>| matches!(entry.origin, SettingSource::Config { .. });
        let count = settings.entries().filter(is_in_file).count();
        // If the file is not valid YAML, a problem below says so.
        if count > 0 || context.problems.0.is_empty() {
            let count = format_count(count, "setting", "settings");
            report.add("config", Used, format!("{}: {count}", file.display()));
        }
    }
    let user_home = settings.environment().user_home();
    let default_file = user_home.map(|home| home.join(".bub/config.yml"));
    if let Some(other) = default_file.filter(|other| other != file && other.exists()) {
        let text = "not used here; the Python version reads only this file";
        report.add("config", Differs, format!("{}: {text}", other.display()));
    }
    for problem in &context.problems.0 {
        report.add("config", ToDo, problem.to_string());
    }
    for warning in settings.warnings() {
        report.add("config", Differs, warning.to_string());
    }
    if settings.origin("max_steps") == Some(SettingSource::Default) {
        let limit = settings.get(AgentSettings::MAX_STEPS).unwrap_or_default();
        let text = format!(
            "a turn has at most {limit} steps; `bub config set max_steps null` removes the limit"
        );
        report.add("config", Differs, text);
    }
}

/// Reports the plugins of the Python version that are not installed here, and the installed ones.
fn add_plugins(context: &CommandContext, report: &mut MigrationReport) -> Result<()> {
    let settings = &context.settings;
    let installed = InstalledPlugins::load(settings.home())?;
    if !installed.plugins.is_empty() {
        let count = format_count(installed.plugins.len(), "plugin", "plugins");
        let text = format!("{count} installed; `bub plugin list` shows them");
        report.add("plugins", MigrationState::Used, text);
    }
    let project = settings.environment().get("BUB_PROJECT").map(PathBuf::from);
    let project = project.unwrap_or_else(|| settings.home().join("bub-project"));
    let text = fs::read_to_string(project.join("pyproject.toml")).unwrap_or_default();
    for (name, requirement) in project_requirements(&text) {
        let is_installed = installed.plugins.iter().any(|plugin| {
            let package = plugin.package.as_ref();
            package.is_some_and(|package| package_name(&package.name) == name)
        });
        if !is_installed {
            let text = format!("{name}: a plugin of the Python version, not installed here");
            report.add_step("plugins", text, &["install", &requirement]);
        }
    }
    Ok(())
}

/// Returns what the Python version has installed: the dependencies of its project, with their names and as arguments for
/// `bub install`.
fn project_requirements(project: &str) -> Vec<(String, String)> {
    let list = project.split_once("\ndependencies = [");
    let list = list.map_or("", |(_, rest)| {
        // A requirement such as `bub[trace]` has brackets, too.
        let end = rest.find("\n]").or_else(|| rest.find("]\n"));
        end.and_then(|end| rest.get(..end)).unwrap_or(rest)
    });
    let sources = project.split_once("[tool.uv.sources]");
    let sources = sources.map_or("", |(_, rest)| rest.split("\n[").next().unwrap_or_default());
    let requirements = list.split('"').skip(1).step_by(2);
    let requirements = requirements.map(|requirement| {
        let name = package_name(requirement);
        let is_source = |line: &&str| line.contains('=') && package_name(line) == name;
        let source = sources.lines().find(is_source).unwrap_or_default();
        let field = |name: &str| {
            let value = source.split_once(&format!("{name} = \""))?.1;
            value.split('"').next()
        };
        let after = |sign: &str, text: Option<&str>| {
            text.map_or(String::new(), |text| format!("{sign}{text}"))
        };
        let requirement = match (field("git"), field("path")) {
            (Some(url), _) => {
                let revision = ["rev", "branch", "tag"].into_iter().find_map(field);
                let (revision, directory) = (after("@", revision), field("subdirectory"));
                format!("git+{url}{revision}{}", after("#subdirectory=", directory))
            }
            (None, path) => path.unwrap_or(requirement).to_owned(),
        };
        (name, requirement)
    });
    // A name that starts with a dash would be an option.
    let is_plugin = |(name, _): &(String, String)| name != "bub" && !name.starts_with('-');
    requirements.filter(is_plugin).collect()
}

/// Returns the name in a requirement, in the form in which names are compared.
fn package_name(requirement: &str) -> String {
    let is_name = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = requirement.chars().take_while(is_name).collect();
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

/// Reports the skills, and the files of the workspace that need trust.
fn add_workspace(context: &CommandContext, report: &mut MigrationReport) {
    let settings = &context.settings;
    let skills = Skills::new(settings).list(Some(context.framework.workspace()));
    let count = format_count(skills.len(), "skill", "skills");
    let text = format!("{count}; `bub skill list` shows them");
    report.add("skills", MigrationState::Used, text);
    let trust = settings.trust_report();
    if !trust.is_trusted() {
        let text = format!(
            "ignored until you trust the workspace: {}",
            trust.ignored_text()
        );
        report.add_step("workspace", text, &["trust"]);
    }
}

async fn add_tapes(context: &CommandContext, report: &mut MigrationReport) -> Result<()> {
    use MigrationState::{Differs, Used};
    let store = tape_store(&context.framework)?;
    let names = store.list(TapeListFilter::Sessions).await;
    let count = names.map_err(tape_error)?.len();
    if count > 0 {
        let count = format_count(count, "session", "sessions");
        let text = format!("{count}; both versions can continue them, but not at the same time");
        report.add("tapes", Used, text);
    }
    let name = |session| TapeName::for_session(context.framework.workspace_text(), session);
    for (session, state, command) in [
        (DEFAULT_SESSION, Used, "bub chat"),
        (FORMER_SESSION, Differs, "bub chat --session cli:local"),
    ] {
        let summary = store.summary(&name(session)).await.map_err(tape_error)?;
        if summary.entries > 0 {
            let text = format!("session `{session}`: `{command}` continues it");
            report.add("chat", state, text);
        }
    }
    Ok(())
}

/// Reports the channels that are set up, and who can give commands there.
fn add_channels(context: &CommandContext, report: &mut MigrationReport) -> Result<()> {
    use MigrationState::{Differs, ToDo, Used};
    let settings = &context.settings;
    let all = context.framework.channels(&probe::discard_handler())?;
    let mut names = settings.get(ChannelSettings::ENABLED_CHANNELS);
    let count = names.len();
    names.retain(|name| name.trim() != CHAT_CHANNEL);
    if names.len() < count {
        let text = "`cli` has no effect in `enabled_channels`; start the chat with `bub chat`";
        report.add("channels", Differs, text);
    }
    if let Err(error) = bub_gateway::check_channel_names(&names, &all) {
        report.add("channels", ToDo, error.message());
    }
    let owners = settings.get(&OWNERS);
    let (paired, _) = Pairings::new(settings.home()).users_and_requests()?;
    let selected = match (names.as_slice(), count) {
        // Only the chat was enabled, not all channels.
        ([], 1..) => Vec::new(),
        (names, _) => bub_gateway::select_channels(names, &all),
    };
    for channel in selected {
        let name = channel.name();
        let Some(access) = channel.access_summary() else {
            report.add("channels", Used, name);
            continue;
        };
        report.add("channels", Differs, format!("{name}: {access}"));
        let has_owner = owners
            .iter()
            .any(|owner| owner.starts_with(&format!("{name}:")))
            || paired
                .iter()
                .any(|user| user.channel == name && user.role() == Role::Owner);
        if has_owner {
            continue;
        }
        let text = format!("{name}: no user is an owner, and only owners can run commands");
        let listed = settings.get_value(&format!("{name}.allow_users"));
        let listed = listed.map_or(Value::Null, LookupValue::to_display_value);
        let listed = listed.as_array().map_or(&[][..], Vec::as_slice);
        match listed {
            [Value::String(id)] if id.bytes().all(|byte| byte.is_ascii_digit()) => {
                let owner = owners.iter().cloned().chain([format!("{name}:{id}")]);
                let owners = owner.collect::<Vec<_>>().join(",");
                report.add_step("channels", text, &["config", "set", "owners", &owners]);
            }
            [] => {
                let advice =
                    "start `bub gateway`, write to the bot, and run `bub pair CODE --owner`";
                report.add("channels", ToDo, format!("{text}; {advice}"));
            }
            _ => {
                let advice = format!("choose one: `bub config set owners {name}:ID`");
                report.add("channels", ToDo, format!("{text}; {advice}"));
            }
        }
    }
    Ok(())
}

/// Reports what earlier releases and the service manager have for the gateway.
fn add_gateway(context: &CommandContext, report: &mut MigrationReport) -> Result<()> {
    use MigrationState::Used;
    let settings = &context.settings;
    let home = settings.home();
    let has_files =
        |path: PathBuf| fs::read_dir(path).is_ok_and(|mut files| files.next().is_some());
    if has_files(home.join("gateway")) {
        let text = "journal: the gateway continues with unfinished messages and replies";
        report.add("gateway", Used, text);
    }
    let (paired, _) = Pairings::new(home).users_and_requests()?;
    if !paired.is_empty() {
        let count = format_count(paired.len(), "paired user", "paired users");
        report.add("gateway", Used, count);
    }
    let rules = Policy::new(settings).rules().len();
    if rules > 0 {
        let count = format_count(rules, "rule", "rules");
        report.add("policy", Used, count);
    }
    if let Some(file) = service_file(settings, context.framework.workspace())
        && fs::read_to_string(&file).is_ok_and(|unit| unit.contains(r#""-m" "bub""#))
    {
        let text = format!("{}: starts the Python version", file.display());
        report.add_step("service", text, &["gateway", "--install"]);
    }
    Ok(())
}

fn list_rows(report: &MigrationReport, applies: bool) -> Listing {
    let mut table = Table::default();
    for row in &report.0 {
        table.row([
            cell(row.topic, Style::BOLD),
            cell(row.state.name(), row.state.style()),
            cell(&row.text, Style::NONE),
        ]);
        if let Some(command) = &row.command {
            let command = format!("run: {}", shown_command(command));
            let empty = || cell("", Style::NONE);
            table.row([empty(), empty(), cell(command, Style::CYAN)]);
        }
    }
    let mut listing = Listing::from(table);
    listing.blank();
    let steps = report.steps().count();
    let count = match steps {
        0 => "nothing to do".to_owned(),
        _ => format_count(steps, "step", "steps"),
    };
    let hint = match report.commands().count() {
        0 => String::new(),
        _ if applies => String::new(),
        commands => {
            let commands = format_count(commands, "command", "commands");
            format!("; `bub migrate --apply` asks and runs {commands}")
        }
    };
    listing.row(count + &hint);
    listing
}

fn to_json(report: &MigrationReport) -> Value {
    let rows = report.0.iter().map(|row| {
        json!({"topic": row.topic, "state": row.state.name(), "text": row.text, "command": row.command})
    });
    json!({"steps": report.steps().count(), "rows": rows.collect::<Vec<_>>()})
}

impl MigrationState {
    fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Differs => "differs",
            Self::ToDo => "to do",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Used => Style::GREEN,
            Self::Differs => Style::YELLOW,
            Self::ToDo => Style::RED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_of_the_python_version_are_read_from_its_project() {
        let project = r#"[project]
name = "bub-project"
version = "0.1.0"
dependencies = [
    "bub[trace]>=0.5.1",
    "bub-mcp==0.3.1",
    "Bub_Feishu>=0.0.2",
    "bub-codex",
    "mine",
]

[tool.uv.sources]
bub-codex = { git = "https://127.0.0.1/contrib.git", subdirectory = "packages/bub-codex", rev = "main" }
mine = { path = "/srv/mine", editable = true }

[tool.other]
bub-mcp = { path = "/elsewhere" }
"#;
        let expected = [
            ("bub-mcp", "bub-mcp==0.3.1"),
            ("bub-feishu", "Bub_Feishu>=0.0.2"),
            (
                "bub-codex",
                "git+https://127.0.0.1/contrib.git@main#subdirectory=packages/bub-codex",
            ),
            ("mine", "/srv/mine"),
        ];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(project_requirements(project), expected);
        let one_line = "[project]\nname = \"x\"\ndependencies = [\"bub\", \"bub-mcp\"]\n";
        assert_eq!(project_requirements(one_line)[0].1, "bub-mcp");
        assert!(project_requirements("").is_empty());
    }
}
