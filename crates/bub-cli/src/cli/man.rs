//! `bub man`: man pages.

use std::path::{Path, PathBuf};

use bub::{AppCommand, CommandContext};
use bub_kernel::Error;
use clap::{Arg, Command, value_parser};
use clap_mangen::Man;

use super::{PROGRAM_NAME, output};

pub(super) fn command() -> AppCommand {
    let directory = Arg::new("directory")
        .value_name("DIR")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("Output directory, such as ~/.local/share/man/man1");
    let command = Command::new("man")
        .about("Write man pages to a directory")
        .arg(directory);
    AppCommand::new(command, |context: CommandContext| async move {
        let Some(directory) = context.matches.get_one::<PathBuf>("directory") else {
            return output::print("");
        };
        let write_error = |error: std::io::Error| {
            let path = directory.display();
            Error::unknown(format!(
                "cannot write man pages to `{path}`: {error}; choose a directory that you can write to"
            ))
        };
        std::fs::create_dir_all(directory).map_err(write_error)?;
        let mut cli = context.command_line().disable_help_subcommand(true);
        // Adds the names of parent commands to the names and usage lines of subcommands.
        cli.build();
        let count = write_pages(&cli, PROGRAM_NAME, directory).map_err(write_error)?;
        output::print(&format!("wrote {count} pages to {}\n", directory.display()))
    })
    .allow_invalid_settings()
}

/// Writes the pages of a command and its visible subcommands and returns their number.
fn write_pages(command: &Command, name: &str, directory: &Path) -> std::io::Result<usize> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .title(name.to_uppercase())
        .render(&mut page)?;
    std::fs::write(directory.join(format!("{name}.1")), page)?;
    let visible = command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help");
    visible.into_iter().try_fold(1, |count, subcommand| {
        Ok(count
            + write_pages(
                subcommand,
                &format!("{name}-{}", subcommand.get_name()),
                directory,
            )?)
    })
}
