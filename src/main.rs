//! The `annals` binary: see [`annals::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    annals::cli::main()
}
