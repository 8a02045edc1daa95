//! `annals config check`: reads the config as `serve` would and says what is in force.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;

use super::{Common, Failure, print};
use crate::base::SystemClock;
use crate::tools::Connections;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Reads the config as serve would; exit 2 and the reason when it cannot be used.
    Check,
}

pub(super) fn run(common: &Common, command: &ConfigCommand) -> Result<ExitCode, Failure> {
    match command {
        ConfigCommand::Check => {
            let config = common.load()?;
            Connections::new(&config.connections, Arc::new(SystemClock)).map_err(Failure::usage)?;
            let source = common
                .config
                .as_ref()
                .map_or_else(|| "the defaults".into(), |path| path.display().to_string());
            print(&format!(
                "ok: {source}; {} personas, {} connections, tenant {}\n",
                config.personas.len(),
                config.connections.len(),
                config.tenant
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
