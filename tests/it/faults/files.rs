//! The file that is written is taken away, exchanged or cut: the log makes it whole from memory, by itself.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::load::Load;
use super::{ALARM_MAX, ENOUGH, outage_seen, outages, record, serve};
use crate::harness::Home;

/// The newest segment.
fn active(log: &Path) -> PathBuf {
    let files = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).max().unwrap()
}

/// Does `strike` to the active segment while clients call.
async fn mends_itself(cause: &str, strike: impl FnOnce(&Path)) {
    let home = Home::new();
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let struck = Instant::now();
    strike(&active(&record::log_dir(&home)));
    outage_seen(&server, cause, ALARM_MAX).await;
    eprintln!("{cause}: noticed after {} ms", struck.elapsed().as_millis());
    load.more_ended(ENOUGH).await;
    let told = load.stop().await;
    assert_eq!(outages(&server, cause).await, 1, "{}", server.log_text());
    record::is_whole(&home, server, &told, cause, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlinked_segment_is_written_anew() {
    mends_itself("missing", |active| std::fs::remove_file(active).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_is_renamed_away_is_written_anew() {
    mends_itself("missing", |active| {
        std::fs::rename(active, active.with_extension("away")).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_a_copy_replaced_is_written_anew() {
    mends_itself("replaced", |active| {
        let copy = active.with_extension("copy");
        std::fs::copy(active, &copy).unwrap();
        std::fs::rename(&copy, active).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_was_emptied_is_written_anew() {
    mends_itself("resized", |active| {
        std::fs::File::options().write(true).open(active).unwrap().set_len(0).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_that_was_cut_in_the_middle_is_written_anew() {
    mends_itself("resized", |active| {
        let file = std::fs::File::options().read(true).write(true).open(active).unwrap();
        let bytes = std::fs::read(active).unwrap();
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
        file.set_len(written / 2).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_after_a_segment_was_unlinked_survives_a_kill() {
    let home = Home::new();
    let server = serve(&home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    let told = load.stop().await;
    std::fs::remove_file(active(&record::log_dir(&home))).unwrap();
    let load = Load::after(&server, told);
    load.more_ended(1).await;
    server.kill();
    let (told, _) = load.abandon().await;
    record::goes_on(&home, &told).await;
}
