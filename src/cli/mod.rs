//! The command line. Logs go to stderr, data to stdout; exit codes: 0 fine, 1 found something, 2 usage or config,
//! 3 a dependency is missing or unreachable, or the log is corrupt.

mod backup;
mod config;
mod digest;
mod key;
mod log;
mod refusals;
mod restore;
mod schemas;
mod serve;
mod stdio;
mod verify;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::app::{ControlClient, DataDir, NodeError, RunFile};
use crate::config::Config;
use crate::db::Postgres;

/// What `--version` says.
const ABOUT: &str = "Annals: an MCP platform that can prove what AI agents did.";

#[derive(Debug, Parser)]
#[command(name = "annals", version, about = ABOUT, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Config file, YAML; without it the defaults are in force.
    #[arg(long, global = true, env = "ANNALS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the log, the private Postgres and its keys lie.
    #[arg(long, global = true, env = "ANNALS_DATA_DIR", value_name = "DIR", default_value = "./annals-data")]
    data_dir: PathBuf,
    /// A Postgres of your own instead of the private one.
    #[arg(long, global = true, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Directory with the Postgres binaries to use.
    #[arg(long, global = true, env = "ANNALS_PG_BIN", value_name = "DIR")]
    pg_bin: Option<PathBuf>,
    /// Log filter, such as "info" or "annals=debug,info".
    #[arg(long, global = true, env = "ANNALS_LOG", value_name = "FILTER")]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the platform.
    Serve(ServeArgs),
    /// Serves MCP on standard input and output, for clients that start a process; a server must run.
    Stdio(stdio::StdioArgs),
    /// Makes, lists and revokes API keys.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Looks at the log's files, beside a running server or without one, and takes another log into use.
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Compares the log with itself and with the rows made from it; exit 1 when they do not agree.
    Verify(verify::VerifyArgs),
    /// Copies log and store as of one moment, beside a running server or without one.
    Backup(backup::BackupArgs),
    /// Brings a backup back into an empty data directory, and verifies it.
    Restore(restore::RestoreArgs),
    /// Looks at the config.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// The keyed digest of a value, as records and the markers of redacted values have it.
    Digest(digest::DigestArgs),
    /// Writes the JSON Schemas of the events.
    Schemas(schemas::SchemasArgs),
    /// Writes the table of events and refusals, in Markdown.
    Refusals(refusals::RefusalsArgs),
}

/// Which parts of the platform a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RoleArg {
    /// Everything.
    All,
    /// Takes calls; needs a log that several processes can share.
    Edge,
    /// Fills the store; needs a log that several processes can share.
    Worker,
}

#[derive(Debug, Clone, Args)]
struct ServeArgs {
    /// Where MCP and REST listen; overrides the config.
    #[arg(long, env = "ANNALS_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where /metrics listens; overrides the config.
    #[arg(long, env = "ANNALS_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Which parts to run.
    #[arg(long, value_enum, default_value_t = RoleArg::All)]
    role: RoleArg,
    /// Makes a database of sample data and a connection to it.
    #[arg(long)]
    sample: bool,
    /// Accepted as an admin key when set.
    #[arg(long, env = "ANNALS_ADMIN_KEY", hide = true, hide_env_values = true)]
    admin_key: Option<String>,
}

/// A command ends early.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn usage(message: impl std::fmt::Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    fn missing(message: impl std::fmt::Display) -> Self {
        Self { code: 3, message: message.to_string() }
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::usage(error)
    }
}

impl From<crate::app::StartError> for Failure {
    fn from(error: crate::app::StartError) -> Self {
        Self { code: error.exit_code(), message: error.to_string() }
    }
}

impl From<crate::db::Error> for Failure {
    fn from(error: crate::db::Error) -> Self {
        crate::app::StartError::from(error).into()
    }
}

impl From<crate::app::ControlError> for Failure {
    fn from(error: crate::app::ControlError) -> Self {
        Self { code: error.exit_code, message: error.message }
    }
}

impl From<crate::backup::Error> for Failure {
    fn from(error: crate::backup::Error) -> Self {
        Self { code: error.exit_code(), message: error.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::missing(error)
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    // Files of the data directory are the owner's alone, whatever the shell's umask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            error.print().unwrap_or(());
            return ExitCode::from(code);
        }
    };
    if let Err(error) = crate::telemetry::start(cli.common.log.as_deref(), false) {
        return fail(&Failure::usage(error));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Failure::missing(error)),
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(failure) => fail(&failure),
    }
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Serve(args) => serve::run(&cli.common, args).await,
        Command::Stdio(args) => stdio::run(&cli.common, args).await,
        Command::Key(command) => key::run(&cli.common, command).await,
        Command::Log(command) => log::run(&cli.common, &command).await,
        Command::Verify(args) => verify::run(&cli.common, &args).await,
        Command::Backup(args) => backup::run(&cli.common, &args).await,
        Command::Restore(args) => restore::run(&cli.common, &args).await,
        Command::Digest(args) => digest::run(&cli.common, &args),
        Command::Config(command) => config::run(&cli.common, &command),
        Command::Schemas(args) => schemas::run(&args),
        Command::Refusals(args) => refusals::run(&args),
    }
}

/// The data directory, which must be there, and not half restored.
fn existing(common: &Common) -> Result<DataDir, Failure> {
    let data_dir = DataDir::open(&common.data_dir)
        .map_err(|error| Failure::usage(format!("{}: {error}", common.data_dir.display())))?;
    if crate::backup::was_interrupted(data_dir.root()) {
        let path = data_dir.root().display().to_string();
        return Err(Failure::missing(NodeError::HalfRestored { path }));
    }
    Ok(data_dir)
}

/// Root that would leave files to a data directory whose user cannot read them is refused.
fn not_of_another_user(data_dir: &DataDir) -> Result<(), Failure> {
    let path = data_dir.root().display().to_string();
    data_dir.of_another_user().map_or(Ok(()), |uid| Err(Failure::missing(NodeError::OtherUser { path, uid })))
}

/// The store of `data_dir`: attached to while it runs, else started. `true`: it was started, and is to be stopped again.
/// A private one that is not there is not made: who only looks would find a new, empty store in order.
async fn store(common: &Common, config: &Config, data_dir: &DataDir) -> Result<(Postgres, bool), Failure> {
    let options = common.database(config, data_dir.root());
    if let Some(running) = Postgres::attach(options.clone()).await? {
        return Ok((running, false));
    }
    not_of_another_user(data_dir)?;
    if options.url.is_none() && !data_dir.root().join("pg").exists() {
        return Err(Failure::missing(format!(
            "there is no store in {}: name its data directory in --data-dir, or its DATABASE_URL; if it is lost, restore a \
             backup, or `annals serve` makes a new one whose rows come from the log and which has no keys",
            data_dir.root().display()
        )));
    }
    Ok((Postgres::start(options).await?, true))
}

/// The server that runs on the data directory.
async fn server(common: &Common) -> Result<Option<ControlClient>, Failure> {
    let Ok(data_dir) = DataDir::open(&common.data_dir) else { return Ok(None) };
    Ok(match RunFile::read(&data_dir.run_file())? {
        Some(run) => ControlClient::connect(&run).await,
        None => None,
    })
}

fn fail(failure: &Failure) -> ExitCode {
    writeln!(std::io::stderr(), "annals: {}", crate::telemetry::redacted(&failure.message)).unwrap_or(());
    ExitCode::from(failure.code)
}

/// Prints to stdout; a closed pipe ends the output quietly.
///
/// # Errors
/// When the output is lost in another way, on a full disk for one.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::missing(format!("cannot write to stdout: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Common {
    /// The config in force: file, then environment.
    fn load(&self) -> Result<Config, Failure> {
        let mut config = match &self.config {
            Some(path) => crate::config::load(path)?,
            None => Config::default(),
        };
        if let Some(url) = &self.database_url {
            config.database.url = Some(url.clone());
        }
        Ok(config)
    }

    fn database(&self, config: &Config, data_dir: &std::path::Path) -> crate::db::Options {
        crate::db::Options {
            data_dir: data_dir.to_owned(),
            // An empty variable is one that is not set.
            url: config.database.url.clone().filter(|url| !url.is_empty()),
            pg_bin: self.pg_bin.clone(),
            database: config.database.clone(),
        }
    }
}
