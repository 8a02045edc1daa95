//! `annals verify`: prints what was compared and what does not agree.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;

use super::{Common, Failure, existing, print, store};
use crate::app::DataDir;
use crate::verify;

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// Only the log: no Postgres is asked or started.
    #[arg(long)]
    log_only: bool,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(common: &Common, args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let config = common.load()?;
    let data_dir = DataDir::open(&common.data_dir)
        .map_err(|error| Failure::usage(format!("{}: {error}", common.data_dir.display())))?;
    let (postgres, started) = if args.log_only {
        (None, false)
    } else {
        let (postgres, started) = store(common, &config, &existing(common)?).await?;
        (Some(postgres), started)
    };
    let report = verify::run(verify::Options {
        log_dir: data_dir.log(),
        log_only: args.log_only,
        postgres: postgres.as_ref(),
        progress: Box::new(progress),
    })
    .await;
    if started && let Some(postgres) = postgres {
        postgres.stop().await?;
    }
    let report = report.map_err(Failure::missing)?;
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&report).map_err(Failure::missing)?))?;
    } else {
        print(&report.to_string())?;
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub(super) fn progress(done: u64, total: u64) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        write!(err, "\rverify: {percent:>3} % of {total} bytes").unwrap_or(());
        if done >= total {
            writeln!(err).unwrap_or(());
        }
    }
}
