//! `annals refusals`: writes `docs/events.md`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Failure, print};

#[derive(Debug, Args)]
pub(super) struct RefusalsArgs {
    /// The file to write to; without it, stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &RefusalsArgs) -> Result<ExitCode, Failure> {
    let text = crate::refusal::events_document(&crate::http::routes());
    match &args.out {
        Some(path) => {
            std::fs::write(path, text)?;
            print(&format!("{}\n", path.display()))?;
        }
        None => print(&text)?,
    }
    Ok(ExitCode::SUCCESS)
}
