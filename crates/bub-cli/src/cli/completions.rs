//! `bub completions`: shell completion scripts.

use bub::{AppCommand, CommandContext};
use clap::{Arg, Command, builder::PossibleValuesParser};
use clap_complete::{
    generate,
    shells::{Bash, Fish, Zsh},
};

use super::{PROGRAM_NAME, output};

pub(super) fn command() -> AppCommand {
    let shell = Arg::new("shell")
        .value_name("SHELL")
        .required(true)
        .value_parser(PossibleValuesParser::new(["bash", "zsh", "fish"]))
        .help("Shell to generate for");
    let command = Command::new("completions")
        .about("Print a shell completion script")
        .after_help(
            "bash: bub completions bash > ~/.local/share/bash-completion/completions/bub\n\
             zsh:  bub completions zsh > \"${fpath[1]}/_bub\"\n\
             fish: bub completions fish > ~/.config/fish/completions/bub.fish",
        )
        .arg(shell);
    AppCommand::new(command, |context: CommandContext| async move {
        let mut cli = context.command_line();
        let mut script = Vec::new();
        match context
            .matches
            .get_one::<String>("shell")
            .map(String::as_str)
        {
            Some("zsh") => generate(Zsh, &mut cli, PROGRAM_NAME, &mut script),
            Some("fish") => generate(Fish, &mut cli, PROGRAM_NAME, &mut script),
            _ => generate(Bash, &mut cli, PROGRAM_NAME, &mut script),
        }
        output::print(&String::from_utf8_lossy(&script))
    })
    .allow_invalid_settings()
}
