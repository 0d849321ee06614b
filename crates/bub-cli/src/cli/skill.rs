//! `bub skill`: lists, shows, checks and creates skills.

use std::{path::PathBuf, process::ExitCode};

use bub::CommandContext;
use bub_agent::{LoadedSkills, SkillProblem, Skills};
use bub_kernel::{Error, Result};
use bub_terminal::Style;
use serde_json::json;

use super::{
    listing::{Listing, Table, cell},
    output,
    tape::text::format_count,
};

/// List, show, check, and create skills
///
/// A skill is a directory with a SKILL.md in `.agents/skills` of the workspace or of your home directory.
#[derive(clap::Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct SkillArgs {
    #[command(subcommand)]
    command: SkillCommand,
}

#[derive(clap::Subcommand)]
enum SkillCommand {
    /// List available skills
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a skill as the model sees it
    Show {
        /// Name of the skill
        name: String,
    },
    /// Check skills for errors
    Check {
        /// Directory with a SKILL.md [default: all skills]
        #[arg(value_name = "DIR", num_args = 0..)]
        directory: Vec<PathBuf>,
    },
    /// Create a skill in the workspace
    New {
        /// Name of the skill
        name: String,
        /// Text that tells the model what the skill does and when to use it
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Create it in your home directory
        #[arg(long)]
        global: bool,
    },
}

pub(super) async fn run(context: CommandContext, args: SkillArgs) -> Result<ExitCode> {
    let skills = Skills::new(&context.settings);
    let workspace = context.framework.workspace();
    match args.command {
        SkillCommand::List { json } => list_skills(&context, &skills, json),
        SkillCommand::Show { name } => {
            let skill = skills.find(Some(workspace), &name).ok_or_else(|| {
                Error::invalid_input(format!("unknown skill {name:?}; see `bub skill list`"))
            })?;
            let text = skills.load(&skill, &LoadedSkills::default());
            output::print_untrusted(&format!("{text}\n"))
        }
        SkillCommand::Check { directory } => check_skills(&context, &skills, &directory),
        SkillCommand::New {
            name,
            description,
            global,
        } => {
            let base = Some(workspace).filter(|_| !global);
            let directory = skills.skills_directory(base).ok_or_else(|| {
                Error::invalid_input(
                    "cannot create a global skill: your home directory is unknown; set `HOME`",
                )
            })?;
            let default = "Describe what the skill does and when to use it.";
            let description = description.as_deref().unwrap_or(default);
            let file = Skills::create_skill(&directory, &name, description)
                .map_err(|problem| Error::invalid_input(problem.to_string()))?;
            // The user's own skill must not end the trust in the workspace.
            let trust = context.settings.workspace_trust();
            if !global && context.settings.trust_report().is_trusted() {
                let remembered = trust.remember(&mut trust.inspect(workspace), true);
                remembered.map_err(|error| Error::config(error.to_string()))?;
            }
            output::print(&format!("created {}\n", file.display()))
        }
    }
}

fn list_skills(context: &CommandContext, skills: &Skills, as_json: bool) -> Result<ExitCode> {
    let workspace = context.framework.workspace();
    let (mut lines, mut table) = (String::new(), Table::default());
    for skill in skills.list(Some(workspace)) {
        let (name, source, description) = (
            skill.name(),
            skill.source().to_string(),
            skill.description(),
        );
        if as_json {
            let line = json!({"name": name, "source": source, "description": description, "location": skill.location(), "env": skill.requested_env()});
            lines.extend([line.to_string(), "\n".to_owned()]);
        } else {
            table.row([
                cell(name, Style::BOLD),
                cell(source, Style::DIM),
                cell(description, Style::NONE),
            ]);
        }
    }
    print_problems(&skills.problems(Some(workspace)));
    if as_json {
        return output::print_untrusted(&lines);
    }
    Listing::from(table).print(&context.settings)
}

fn check_skills(
    context: &CommandContext,
    skills: &Skills,
    directories: &[PathBuf],
) -> Result<ExitCode> {
    let workspace = context.framework.workspace();
    let (mut listing, mut problems) = (Listing::default(), Vec::new());
    if directories.is_empty() {
        problems = skills.problems(Some(workspace));
        let available = format_count(skills.list(Some(workspace)).len(), "skill", "skills");
        listing.row(format!("{available} available, {} invalid", problems.len()));
    }
    for directory in directories {
        if !directory.exists() {
            let text = format!(
                "directory `{}` not found; check the path",
                directory.display()
            );
            return Err(Error::not_found(text));
        }
        match Skills::check_skill(directory) {
            Ok(skill) => listing.row(format!("ok: {}", skill.name())),
            Err(problem) => problems.push(problem),
        }
    }
    listing.print(&context.settings)?;
    print_problems(&problems);
    Ok(ExitCode::from(u8::from(!problems.is_empty())))
}

/// Prints problems to stderr.
fn print_problems(problems: &[SkillProblem]) {
    for problem in problems {
        notice!("{}", output::sanitize_line(&problem.to_string()));
    }
}
