//! `bub skill`: lists, shows, checks and creates skills.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::{AppCommand, CommandContext};
use bub_agent::{LoadedSkills, SkillProblem, Skills};
use bub_kernel::Result;
use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser};
use serde_json::json;

use super::{output, tape::text::format_count};

/// Exit code if a skill is invalid.
const EXIT_FAILURE: u8 = 1;
/// Exit code for invalid arguments.
const EXIT_USAGE: u8 = 2;

pub(super) fn command() -> AppCommand {
    let flag = |name: &'static str, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let name = || {
        Arg::new("name")
            .value_name("NAME")
            .required(true)
            .help("Name of the skill")
    };
    let list = Command::new("list")
        .about("List available skills")
        .arg(flag("json", "Print JSON"));
    let show = Command::new("show")
        .about("Print a skill as the model sees it")
        .arg(name());
    let check = Command::new("check").about("Check skills for errors").arg(
        Arg::new("directory")
            .value_name("DIR")
            .num_args(0..)
            .value_parser(ValueParser::path_buf())
            .help("Directory with a SKILL.md [default: all skills]"),
    );
    let new = Command::new("new")
        .about("Create a skill in the workspace")
        .arg(name())
        .arg(
            Arg::new("description")
                .long("description")
                .value_name("TEXT")
                .help("Text that tells the model what the skill does and when to use it"),
        )
        .arg(flag("global", "Create it in your home directory"));
    let command = Command::new("skill")
        .about("List, show, check, and create skills")
        .long_about(
            "List, show, check, and create skills. A skill is a directory with a SKILL.md in `.agents/skills` of the \
             workspace or of your home directory.",
        )
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands([list, show, check, new]);
    AppCommand::new(
        command,
        |context: CommandContext| async move { run(&context) },
    )
}

fn run(context: &CommandContext) -> Result<ExitCode> {
    let settings = &context.settings;
    let (skills, workspace) = (Skills::new(settings), context.framework.workspace());
    match context.matches.subcommand() {
        Some(("list", matches)) => list_skills(&skills, workspace, matches.get_flag("json")),
        Some(("show", matches)) => show_skill(&skills, workspace, skill_name(matches)),
        Some(("check", matches)) => check_skills(&skills, workspace, matches),
        Some((_, matches)) => create_skill(&skills, workspace, matches),
        None => Ok(ExitCode::from(EXIT_USAGE)),
    }
}

fn list_skills(skills: &Skills, workspace: &Path, as_json: bool) -> Result<ExitCode> {
    let all = skills.list(Some(workspace));
    let width = all
        .iter()
        .map(|skill| skill.name().len())
        .max()
        .unwrap_or_default();
    let mut text = String::new();
    for skill in all {
        let (name, source, description) = (skill.name(), skill.source(), skill.description());
        let _ = if as_json {
            let (source, location) = (source.to_string(), skill.location());
            let line = json!({"name": name, "source": source, "description": description, "location": location, "env": skill.requested_env()});
            writeln!(text, "{line}")
        } else {
            let source = source.to_string();
            writeln!(
                text,
                "{name:width$}  {source:7}  {}",
                output::sanitize_line(description)
            )
        };
    }
    print_problems(&skills.problems(Some(workspace)));
    output::print(&text)
}

fn show_skill(skills: &Skills, workspace: &Path, name: &str) -> Result<ExitCode> {
    let Some(skill) = skills.find(Some(workspace), name) else {
        return Ok(report_usage_error(&format!(
            "unknown skill {name:?}; see `bub skill list`"
        )));
    };
    output::print_untrusted(&format!(
        "{}\n",
        skills.load(&skill, &LoadedSkills::default())
    ))
}

fn check_skills(skills: &Skills, workspace: &Path, matches: &ArgMatches) -> Result<ExitCode> {
    let directories: Vec<_> = matches
        .get_many::<PathBuf>("directory")
        .into_iter()
        .flatten()
        .collect();
    let (mut text, mut problems) = (String::new(), Vec::new());
    if directories.is_empty() {
        problems = skills.problems(Some(workspace));
        let available = skills.list(Some(workspace)).len();
        let _ = writeln!(
            text,
            "{} available, {} invalid",
            format_count(available as u64, "skill", "skills"),
            problems.len()
        );
    }
    for directory in directories {
        match Skills::check_skill(directory) {
            Ok(skill) => {
                let _ = writeln!(text, "ok: {}", skill.name());
            }
            Err(problem) => problems.push(problem),
        }
    }
    output::print(&text)?;
    print_problems(&problems);
    Ok(if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILURE)
    })
}

fn create_skill(skills: &Skills, workspace: &Path, matches: &ArgMatches) -> Result<ExitCode> {
    let base = if matches.get_flag("global") {
        None
    } else {
        Some(workspace)
    };
    let Some(directory) = skills.skills_directory(base) else {
        return Ok(report_usage_error(
            "cannot create a global skill: your home directory is unknown; set `HOME`",
        ));
    };
    let description = matches.get_one::<String>("description").map_or(
        "Describe what the skill does and when to use it.",
        String::as_str,
    );
    match Skills::create_skill(&directory, skill_name(matches), description) {
        Ok(file) => output::print(&format!("created {}\n", file.display())),
        Err(problem) => Ok(report_usage_error(&problem.to_string())),
    }
}

fn skill_name(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("name").map_or("", String::as_str)
}

/// Prints problems to stderr.
fn print_problems(problems: &[SkillProblem]) {
    for problem in problems {
        let _ = writeln!(
            std::io::stderr(),
            "{}",
            output::sanitize_line(&problem.to_string())
        );
    }
}

/// Prints an error and returns the exit code for invalid arguments.
fn report_usage_error(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {}", output::sanitize_line(text));
    ExitCode::from(EXIT_USAGE)
}
