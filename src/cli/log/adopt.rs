//! `annals log adopt`: says what following the log that is here would mean, and with `--yes` does it.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use super::super::{existing, print, server, store};
use super::{Common, Failure};
use crate::app::{AdoptError, DataDir, Divergence, adopt, diagnose};
use crate::event::AdoptionReason;

#[derive(Debug, Args)]
pub(in crate::cli) struct AdoptArgs {
    /// Does it; without, nothing is changed and the exit code is 2.
    #[arg(long)]
    yes: bool,
}

impl From<AdoptError> for Failure {
    fn from(error: AdoptError) -> Self {
        let code = match &error {
            AdoptError::Log(crate::log::ReadError::Corrupt { .. }) => 1,
            AdoptError::Start(error) => error.exit_code(),
            _ => 3,
        };
        Self { code, message: error.to_string() }
    }
}

pub(super) async fn run(common: &Common, args: &AdoptArgs) -> Result<ExitCode, Failure> {
    let config = common.load()?;
    let data_dir = existing(common)?;
    if server(common).await?.is_some() {
        return Err(Failure::usage(format!(
            "a server runs on {}; stop it first: nothing may be written to a log that is about to change",
            data_dir.root().display()
        )));
    }
    let (postgres, started) = store(common, &config, &data_dir).await?;
    let found = diagnose(&data_dir, &postgres).await;
    if started {
        postgres.stop().await?;
    } else {
        drop(postgres);
    }
    let Some(divergence) = found? else {
        print("the store belongs to the log that is here; there is nothing to adopt\n")?;
        return Ok(ExitCode::SUCCESS);
    };
    if !args.yes {
        print(&plan(&data_dir, &divergence))?;
        return Err(Failure::usage("nothing was changed; run it again with --yes to do this"));
    }
    let database = |root: &Path| common.database(&config, root);
    let adopted = adopt(&data_dir, &divergence, &config, database).await?;
    let mut text = format!("adopted    log {}\n", adopted.log);
    if let Some(aside) = adopted.set_aside {
        text += &format!("set aside  {}\n", aside.display());
    }
    text += "next       annals serve; the rows of this log come by themselves\n";
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn plan(data_dir: &DataDir, divergence: &Divergence) -> String {
    let old: Vec<String> = divergence.old.iter().map(ToString::to_string).collect();
    let old = old.join(", ");
    let mut text = format!("The store and the log do not belong together: {}.\n\n", divergence.detail);
    match (divergence.reason, divergence.here) {
        (AdoptionReason::OlderCopy, here) => {
            let id = here.map_or_else(String::new, |log| log.to_string());
            text += &format!(
                "The log in {} is an older copy of log {id}, or another course of it: events that the store has are \
                 missing. It cannot be gone on with under that id, for new events would take the positions of the \
                 missing ones.\n\nAdopting means:\n  - {0} is moved to log-{id}-DATE and kept; nothing reads it any more\n  - \
                 a new log with a new id begins, and the store follows it from its start\n",
                data_dir.log().display()
            );
        }
        (AdoptionReason::OtherLog, Some(here)) => {
            let from =
                if divergence.resume.is_empty() { "from its start" } else { "again, from where it stood" };
            text += &format!("Adopting means:\n  - the store follows log {here} {from}\n");
        }
        (AdoptionReason::OtherLog, None) => {
            text += "Adopting means:\n  - a new log begins, and the store follows it from its start\n";
        }
    }
    text += &format!(
        "  - the rows of log {old} stay as history; `annals verify` cannot compare them any more, and says so\n  - API keys \
         stay as they are, and are restated in the event admin.log_adopted with the old checkpoints\n\nThe safer way: put \
         back the log that the store was made from, or restore log and store together (annals restore).\n"
    );
    text
}
