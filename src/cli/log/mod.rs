//! `annals log`: `inspect` and `dump` look at the log's files, beside a running server or without one; they never write to
//! them and ask no Postgres. `adopt` makes the store follow another log.

mod adopt;
mod dump;
mod inspect;

use std::process::ExitCode;

use clap::Subcommand;

use super::{Common, Failure};
use crate::app::DataDir;
use crate::log::ReadError;
use crate::log::embedded::Scanner;

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Says what the log holds: segments, topics, process starts, and how it ends. Exit 1 when it is corrupt.
    Inspect(inspect::InspectArgs),
    /// Prints events as they are stored, one JSON object a line. Exit 1 where the log is corrupt.
    Dump(dump::DumpArgs),
    /// Ends `log_diverged` by following the log that is here from its start. Without --yes it only says what it would do.
    Adopt(adopt::AdoptArgs),
}

pub(super) async fn run(common: &Common, command: &LogCommand) -> Result<ExitCode, Failure> {
    match command {
        LogCommand::Inspect(args) => inspect::run(common, args),
        LogCommand::Dump(args) => dump::run(common, args),
        LogCommand::Adopt(args) => adopt::run(common, args).await,
    }
}

fn open(common: &Common) -> Result<Scanner, Failure> {
    let data_dir = DataDir::open(&common.data_dir).map_err(|error| {
        Failure::missing(format!("there is no log in {}: {error}", common.data_dir.display()))
    })?;
    Scanner::open(&data_dir.log()).map_err(unreadable)
}

/// Damage is what was looked for; a log that is not there or cannot be read is not.
fn unreadable(error: ReadError) -> Failure {
    match error {
        ReadError::Corrupt { .. } => Failure { code: 1, message: error.to_string() },
        ReadError::Io { .. }
        | ReadError::Write { .. }
        | ReadError::Dropped { .. }
        | ReadError::NotFound(_)
        | ReadError::Closed => Failure::missing(error),
    }
}
