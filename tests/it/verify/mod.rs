//! `verify`: clean where nothing was touched, and the first bad position where something was.

pub(crate) mod forger;
mod log;
mod rows;

use annals::verify::{self, Finding, Report};

use crate::projection::stand::Stand;

pub(crate) async fn verify(stand: &Stand) -> Report {
    run(stand, false).await
}

async fn run(stand: &Stand, log_only: bool) -> Report {
    verify::run(verify::Options {
        log_dir: stand.server.data_dir.path().join("log"),
        log_only,
        postgres: Some(&stand.server.postgres),
        progress: Box::new(|done, total| assert!(done <= total)),
    })
    .await
    .unwrap()
}

/// Kind, position and words of the first finding.
pub(crate) fn first(report: &Report) -> (&'static str, u64, &str) {
    let Some(Finding { kind, position, detail, .. }) = report.findings.first() else {
        panic!("nothing was found:\n{report}")
    };
    (kind.as_str(), *position, detail)
}
