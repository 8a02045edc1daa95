//! `annals config check`: reads the config as `serve` would and says what is in force.

use std::process::ExitCode;

use clap::Subcommand;

use super::{Common, Failure, print};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Reads the config as serve would; exit 2 and the reason when it cannot be used.
    Check,
}

pub(super) fn run(common: &Common, command: &ConfigCommand) -> Result<ExitCode, Failure> {
    match command {
        ConfigCommand::Check => {
            let config = common.load()?;
            let source = common
                .config
                .as_ref()
                .map_or_else(|| "the defaults".into(), |path| path.display().to_string());
            print(&format!(
                "ok: {source}; {} personas, {} connections, tenant {}\n",
                config.personas.len(),
                config.connections.len(),
                config.tenant
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}
