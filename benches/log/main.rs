//! Benchmarks of the embedded log: `cargo bench --bench log -- append` and `… -- recovery`. `docs/performance.md` says
//! what they measure and what they gave. This file knows only the command line.

mod suite;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tokio::runtime::Runtime;

use suite::{append, recovery};

/// Measures the embedded log beside what the disk does bare, in one run. Prints Markdown.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --bench log --")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Cargo says that this is a benchmark.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Appends at several numbers of waiters, beside a bare loop of the same writes and syncs.
    Append(AppendArgs),
    /// Opening after a kill and after a clean end, and a scan of the whole log.
    Recovery(RecoveryArgs),
    /// Fills a log and waits to be killed.
    #[command(hide = true)]
    Fill(FillArgs),
}

#[derive(Debug, Args)]
struct AppendArgs {
    /// Where the files go; a directory below it is made and removed again.
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    dir: PathBuf,
    /// Callers that each wait for the ack of their record.
    #[arg(long, value_delimiter = ',', default_value = "1,64,256,1024")]
    waiters: Vec<usize>,
    /// Everything is measured this many times, in turn, so that noise hits all alike.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long one measurement of one round runs, milliseconds.
    #[arg(long, default_value_t = 700)]
    slice_ms: u64,
    /// What one measurement may write, MiB. On the disk there is at most twice that at a time.
    #[arg(long, default_value_t = 768)]
    slice_mib_max: u64,
    /// The size of each body.
    #[arg(long, default_value_t = 1024)]
    body_bytes: usize,
}

#[derive(Debug, Args)]
struct RecoveryArgs {
    /// Where the files go; a directory below it is made and removed again.
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    dir: PathBuf,
    /// Sizes of the logs, in records.
    #[arg(long, value_delimiter = ',', default_value = "100000,1000000,10000000")]
    records: Vec<u64>,
    /// The size of each body.
    #[arg(long, default_value_t = 64)]
    body_bytes: usize,
    /// Also kills one log that has all records of the largest size in one segment.
    #[arg(long)]
    one_segment: bool,
}

#[derive(Debug, Args)]
struct FillArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    records: u64,
    #[arg(long)]
    body_bytes: usize,
    #[arg(long)]
    segment_bytes: u64,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let text = match cli.command {
        Command::Append(args) => {
            let options = append::Options {
                dir: args.dir,
                waiters: args.waiters,
                rounds: args.rounds,
                slice: Duration::from_millis(args.slice_ms),
                slice_bytes_max: args.slice_mib_max << 20,
                body_bytes: args.body_bytes,
            };
            append::run(&runtime, &options)?.to_string()
        }
        Command::Recovery(args) => {
            let options = recovery::Options {
                dir: args.dir,
                records: args.records,
                body_bytes: args.body_bytes,
                one_segment: args.one_segment,
                program: Some(std::env::current_exe()?),
            };
            recovery::run(&runtime, &options)?.to_string()
        }
        Command::Fill(args) => {
            let log = recovery::Filled {
                dir: args.dir,
                records: args.records,
                body_bytes: args.body_bytes,
                segment_bytes: args.segment_bytes,
            };
            return fill_until_killed(&runtime, &log);
        }
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// Makes the log, says so, and stays until it is killed or nobody is there to do so.
fn fill_until_killed(runtime: &Runtime, log: &recovery::Filled) -> anyhow::Result<()> {
    let filled = recovery::fill(runtime, log)?;
    let mut output = std::io::stdout().lock();
    output.write_all(b"filled\n")?;
    output.flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    drop(filled);
    Ok(())
}
