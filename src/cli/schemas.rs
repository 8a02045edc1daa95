//! `annals schemas`: writes what `schemas/` holds.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Failure, print};
use crate::event::schema;

#[derive(Debug, Args)]
pub(super) struct SchemasArgs {
    /// The directory to write to.
    #[arg(long, value_name = "DIR", default_value = "schemas")]
    out: PathBuf,
}

pub(super) fn run(args: &SchemasArgs) -> Result<ExitCode, Failure> {
    for file in schema::files() {
        let path = args.out.join(&file.path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, &file.text)?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
