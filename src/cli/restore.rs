//! `annals restore`: a backup into an empty data directory, and what `annals verify` says of it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::verify::progress;
use super::{Common, Failure, print};
use crate::backup;

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The backup's directory. Restored is into --data-dir, which must be empty or missing.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
}

pub(super) async fn run(common: &Common, args: &RestoreArgs) -> Result<ExitCode, Failure> {
    let config = common.load()?;
    let from = args.from.clone();
    let checking = tokio::task::spawn_blocking(move || backup::check(&from)).await;
    let checked = checking.map_err(Failure::missing)??;
    let options = common.database(&config, &common.data_dir);
    let restored = backup::restore(&checked, options, Box::new(progress)).await?;
    print(&format!(
        "manifest   {}\ntaken      {}\n{}",
        checked.manifest_sha256, checked.manifest.taken_at, restored.report
    ))?;
    if restored.report.is_clean() {
        print(&format!("restored   {}\n", common.data_dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure {
        code: 1,
        message: format!(
            "what was restored into {} does not hold together, so nothing starts there; use another backup",
            common.data_dir.display()
        ),
    })
}
