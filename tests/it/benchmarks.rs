//! The benchmarks run, small, and measure what they say. How fast anything is, no test says.

#[path = "../../benches/log/suite/mod.rs"]
mod suite;

use std::time::Duration;

use suite::{append, recovery};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

#[test]
fn the_bare_loop_repeats_every_write_of_the_engine() {
    let dir = TempDir::new().unwrap();
    let options = append::Options {
        dir: dir.path().to_owned(),
        waiters: vec![1, 16],
        rounds: 2,
        slice: Duration::from_millis(50),
        slice_bytes_max: 8 << 20,
        body_bytes: 1024,
    };
    let report = append::run(&runtime(), &options).unwrap();
    assert_eq!(report.singles.records, report.singles.times.len());
    for row in &report.rows {
        assert!(row.engine.records >= 2, "{} waiters", row.waiters);
        assert_eq!(row.engine.times.len(), row.engine.records);
        assert_eq!(row.bare.records, row.engine.records);
        assert_eq!(row.bare.times.len(), row.writes);
        assert_eq!(row.lanes.times.len(), row.lanes.records);
    }
    assert_eq!(report.rows[0].writes, report.rows[0].engine.records, "one waiter shares no write");
    let table = report.to_string();
    assert_eq!(table.lines().filter(|line| line.starts_with('|')).count(), 2 + report.rows.len(), "{table}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "files stay behind");
}

#[test]
fn every_opening_that_is_measured_finds_the_whole_log() {
    let dir = TempDir::new().unwrap();
    let options = recovery::Options {
        dir: dir.path().to_owned(),
        records: vec![1_000, 3_000],
        body_bytes: 64,
        one_segment: true,
        program: None,
    };
    let report = recovery::run(&runtime(), &options).unwrap();
    assert_eq!(report.rows.iter().map(|row| row.records).collect::<Vec<_>>(), [1_000, 3_000, 3_000]);
    for row in &report.rows {
        // The first segment of a log holds its header only: each opening starts another.
        assert_eq!(row.segments, 2);
    }
    let table = report.to_string();
    assert_eq!(table.lines().filter(|line| line.starts_with('|')).count(), 2 + report.rows.len(), "{table}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "files stay behind");
}
