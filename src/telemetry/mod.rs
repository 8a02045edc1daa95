//! What operators see: log lines on stderr and metrics. Counts and times, never what somebody wrote; where an error's text
//! repeats that all the same, its secrets are taken out of the line.

mod lines;
mod process;

pub use lines::{redact_with, redacted};
pub use process::ProcessMetrics;

use tracing_subscriber::EnvFilter;

/// What would write the callers' statements as they are, literals and all, whatever `ANNALS_LOG` asks for.
const WRITES_STATEMENTS: [&str; 5] = [
    "sqlparser=off",
    "sqlparser::parser=off",
    "sqlparser::tokenizer=off",
    "sqlparser::dialect=off",
    "sqlparser::ast=off",
];

/// The filter cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("ANNALS_LOG={filter:?} is not a log filter like \"info\" or \"annals=debug,info\": {cause}")]
pub struct FilterError {
    filter: String,
    cause: String,
}

/// Starts log lines on stderr; `filter` is the value of `ANNALS_LOG`.
///
/// # Errors
/// [`FilterError`] when the filter has no meaning.
pub fn start(filter: Option<&str>, json: bool) -> Result<(), FilterError> {
    let text = filter.unwrap_or("info,sqlx=warn,hyper=warn");
    let filter = EnvFilter::try_new(text)
        .map_err(|error| FilterError { filter: text.to_owned(), cause: error.to_string() })?;
    let filter = WRITES_STATEMENTS.iter().fold(filter, |filter, target| {
        filter.add_directive(target.parse().expect("a target that is off is a directive"))
    });
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| lines::Redacting(std::io::stderr()));
    lines::redact_panics();
    if json {
        lines.json().try_init()
    } else {
        use std::io::IsTerminal;
        lines.with_ansi(std::io::stderr().is_terminal()).try_init()
    }
    .map_err(|error| FilterError { filter: text.to_owned(), cause: error.to_string() })
}
