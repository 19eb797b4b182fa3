//! `logreel completions`: a script that a shell completes with.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::Output;

#[derive(clap::Args)]
pub struct Args {
    /// For which shell
    shell: Shell,
}

pub fn run(args: Args, out: &mut Output) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "logreel", &mut script);
    out.raw(&script)?;
    Ok(0)
}
