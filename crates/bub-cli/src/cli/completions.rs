//! `bub completions`: shell completion scripts.

use std::process::ExitCode;

use bub::CommandContext;
use bub_kernel::Result;
use clap_complete::{
    generate,
    shells::{Bash, Fish, Zsh},
};

use super::{PROGRAM_NAME, output};

#[derive(clap::Args)]
#[command(
    after_help = "bash: bub completions bash > ~/.local/share/bash-completion/completions/bub\n\
                  zsh:  bub completions zsh > \"${fpath[1]}/_bub\"\n\
                  fish: bub completions fish > ~/.config/fish/completions/bub.fish"
)]
pub(super) struct CompletionsArgs {
    /// Shell to generate for
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

pub(super) async fn run(context: CommandContext, args: CompletionsArgs) -> Result<ExitCode> {
    let mut cli = context.command_line();
    let mut script = Vec::new();
    match args.shell.as_str() {
        "zsh" => generate(Zsh, &mut cli, PROGRAM_NAME, &mut script),
        "fish" => generate(Fish, &mut cli, PROGRAM_NAME, &mut script),
        _ => generate(Bash, &mut cli, PROGRAM_NAME, &mut script),
    }
    output::print(&String::from_utf8_lossy(&script))
}
