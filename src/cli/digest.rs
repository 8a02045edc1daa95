//! `annals digest`: the keyed digest of a value that somebody holds, to compare it with a record.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Common, Failure, existing, print};
use crate::app::digest_key;

/// More than any value that a record has a digest of.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(super) struct DigestArgs {
    /// A file whose bytes are digested as they are. Without it the value comes from stdin, less one line break at its end.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) fn run(common: &Common, args: &DigestArgs) -> Result<ExitCode, Failure> {
    let data_dir = existing(common)?;
    let key = digest_key::read(data_dir.root()).map_err(Failure::missing)?;
    let mut value = Vec::new();
    match &args.file {
        Some(path) => {
            let unreadable = |cause| Failure::usage(format!("cannot read {}: {cause}", path.display()));
            let file = std::fs::File::open(path).map_err(unreadable)?;
            file.take(BYTES_MAX + 1).read_to_end(&mut value).map_err(unreadable)?;
        }
        None => {
            let unreadable = |cause| Failure::usage(format!("cannot read stdin: {cause}"));
            std::io::stdin().lock().take(BYTES_MAX + 1).read_to_end(&mut value).map_err(unreadable)?;
            if value.ends_with(b"\n") {
                value.pop();
            }
        }
    }
    if value.len() as u64 > BYTES_MAX {
        return Err(Failure::usage(format!("the value has over {BYTES_MAX} bytes")));
    }
    print(&format!("{}  key {}\n", key.digest(&value), key.id()))?;
    Ok(ExitCode::SUCCESS)
}
