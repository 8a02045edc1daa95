use std::process::ExitCode;

use clap::Args;

use super::{Common, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct AdoptArgs {
    /// Does it.
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(_: &Common, args: &AdoptArgs) -> Result<ExitCode, Failure> {
    Err(Failure::usage(args.yes))
}
