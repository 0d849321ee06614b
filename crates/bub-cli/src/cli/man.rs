//! `bub man`: man pages.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use bub::CommandContext;
use bub_kernel::{Error, Result};
use clap::Command;
use clap_mangen::Man;

use super::{PROGRAM_NAME, output};

#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// Output directory, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) async fn run(
    context: CommandContext,
    ManArgs { directory }: ManArgs,
) -> Result<ExitCode> {
    let mut cli = context.command_line().disable_help_subcommand(true);
    // Adds the names of parent commands to the names and usage lines of subcommands.
    cli.build();
    let path = directory.display();
    let written = std::fs::create_dir_all(&directory)
        .and_then(|()| write_pages(&cli, PROGRAM_NAME, &directory));
    let count = written.map_err(|error| {
        Error::unknown(format!(
            "cannot write man pages to `{path}`: {error}; choose a directory that you can write to"
        ))
    })?;
    output::print(&format!("wrote {count} pages to {path}\n"))
}

/// Writes the pages of a command and its visible subcommands and returns their number.
fn write_pages(command: &Command, name: &str, directory: &Path) -> std::io::Result<usize> {
    let mut page = Vec::new();
    let man = Man::new(command.clone()).title(name.to_uppercase());
    man.render(&mut page)?;
    std::fs::write(directory.join(format!("{name}.1")), page)?;
    let mut visible = command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help");
    visible.try_fold(1, |count, subcommand| {
        let name = format!("{name}-{}", subcommand.get_name());
        Ok(count + write_pages(subcommand, &name, directory)?)
    })
}
