//! `annals backup`: beside the running server, or on the data directory itself when none runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::Value;

use super::{Common, Failure, existing, not_of_another_user, print, server};
use crate::app::{AdoptError, Backup, ControlError, DataDir, Workbench, diagnose, record_backup};
use crate::backup::{self, Options, Taken};
use crate::base::SystemClock;
use crate::config::Config;
use crate::db::Postgres;
use crate::log::embedded::durable_end;

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// Where to: a directory that is empty or does not exist yet.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

pub(super) async fn run(common: &Common, args: &BackupArgs) -> Result<ExitCode, Failure> {
    let config = common.load()?;
    let data_dir = existing(common)?;
    not_of_another_user(&data_dir)?;
    // Before anything else: without a server, opening a log that is not there would make one.
    durable_end(&data_dir.log()).map_err(backup::Error::from)?;
    let (taken, recorded) = match server(common).await? {
        Some(server) => {
            let postgres = Postgres::attach(common.database(&config, data_dir.root())).await?;
            let postgres = postgres.ok_or_else(|| {
                Failure::missing("the store of the running server is not there yet; try again in a moment")
            })?;
            let taken = take(common, &config, &data_dir, &postgres, &args.to).await;
            // It goes on while the server uses it; should that have ended meanwhile, nobody else would stop it.
            postgres.stop().await?;
            let taken = taken?;
            let said = said(&taken, &args.to);
            let told = server.request::<Value>(Method::POST, "/v1/backups", Some(&said)).await;
            let recorded = told.map(|_| ());
            (taken, recorded)
        }
        None => {
            let database = |root: &Path| common.database(&config, root);
            let bench = Workbench::open(&common.data_dir, &config, "backup", database).await?;
            let taken = take(common, &config, &data_dir, bench.postgres(), &args.to).await;
            let recorded = match &taken {
                Ok(taken) => record_backup(bench.lanes(), &said(taken, &args.to)).await.map(|_| ()),
                Err(_) => Ok(()),
            };
            bench.close().await?;
            (taken?, recorded.map_err(ControlError::from))
        }
    };
    print(&show(&taken, &args.to))?;
    recorded.map_err(|error| Failure {
        message: format!(
            "the backup is whole and can be restored, but it is not on the record: {}; note the manifest's sum, or take another",
            error.message
        ),
        code: error.exit_code,
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn take(
    common: &Common,
    config: &Config,
    data_dir: &DataDir,
    postgres: &Postgres,
    to: &Path,
) -> Result<Taken, Failure> {
    let diverged = diagnose(data_dir, postgres).await.map_err(|error| match error {
        AdoptError::Log(error) => backup::Error::from(error).into(),
        other => Failure::from(other),
    })?;
    if let Some(diverged) = diverged {
        return Err(Failure::usage(format!(
            "store and log do not belong together, so a backup of both could not be restored: {}; put back the log that the \
             store was made from, or stop the server and let `annals log adopt` say what following this log would mean",
            diverged.detail
        )));
    }
    let options = Options {
        log_dir: data_dir.log(),
        to: to.to_owned(),
        postgres,
        pg_bin: common.pg_bin.clone(),
        tenant: config.tenant.clone(),
        lock_wait: Duration::from_millis(config.database.backup_lock_wait_ms),
        clock: &SystemClock,
    };
    Ok(backup::take(options).await?)
}

fn said(taken: &Taken, to: &Path) -> Backup {
    Backup {
        log_id: taken.manifest.log_id,
        end: taken.manifest.end,
        manifest_sha256: taken.manifest_sha256.clone(),
        directory: std::fs::canonicalize(to).unwrap_or_else(|_| to.to_owned()).display().to_string(),
    }
}

fn show(taken: &Taken, to: &Path) -> String {
    let manifest = &taken.manifest;
    format!(
        "backup     {}\nlog        {}\nend        {}\nfiles      {} with {} bytes\nmanifest   {}\n",
        to.display(),
        manifest.log_id,
        manifest.end,
        manifest.files.len(),
        taken.bytes(),
        taken.manifest_sha256,
    )
}
