//! A forger who rewrote the log to its end, so that nothing in it says otherwise: the rows do, and their checkpoints.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use annals::base::sha256;
use annals::event::{Kind, Link, Topic, TopicPartition, ZERO_LINK};
use annals::log::embedded::{EmbeddedLog, ScannedItem, Scanner};
use annals::log::{Frame, Log, Position};
use uuid::Uuid;

use super::{first, run, verify};
use crate::projection::stand::{Stand, append, open_log};

/// A copy of the files of a log, made when nothing was in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Gives events other bodies and lanes the links that follow from them.
#[derive(Default)]
struct Relinked {
    links: HashMap<(Uuid, TopicPartition), Link>,
    /// In hex, as they were and as they are now: for events that state them.
    replaced: Vec<(String, String)>,
}

impl Relinked {
    fn take(&mut self, frame: &mut Frame, change: impl FnOnce(&str) -> String) {
        let mut text = change(std::str::from_utf8(&frame.body).unwrap());
        if frame.target.topic == Topic::System {
            for (old, new) in &self.replaced {
                text = text.replace(old, new);
            }
        }
        assert_eq!(text.len(), frame.body.len(), "positions would move");
        frame.body = text.into();
        frame.content = sha256(&frame.body);
        let key = (frame.incarnation, frame.target);
        let old = frame.link;
        frame.link = frame.link_behind(self.links.get(&key).unwrap_or(&ZERO_LINK));
        self.links.insert(key, frame.link);
        if old != frame.link {
            self.replaced.push((hex::encode(old), hex::encode(frame.link)));
        }
    }
}

/// Writes the log in `log` again behind what `empty`, a copy of it without events, holds: with a body changed where
/// `change` gives another one, and everything recomputed that depends on it. The positions stay.
pub(crate) async fn rewrite(log: &Path, empty: &Path, change: impl Fn(Position, &str) -> Option<String>) {
    let mut scanner = Scanner::open(log).unwrap();
    let forged: Arc<EmbeddedLog> = open_log(empty);
    assert_eq!(forged.id(), scanner.log_id());
    let (mut relinked, mut changed) = (Relinked::default(), 0);
    while let Some(scanned) = scanner.next().unwrap() {
        match scanned.item {
            ScannedItem::Event(stored) => {
                let mut frame = stored.frame;
                relinked.take(&mut frame, |body| match change(stored.position, body) {
                    Some(other) => {
                        changed += 1;
                        other
                    }
                    None => body.to_owned(),
                });
                assert_eq!(append(&*forged, frame).await, stored.position);
            }
            ScannedItem::Closed { incarnation, .. } => forged.mark_closed(incarnation).await.unwrap(),
        }
    }
    assert_eq!(changed, 1);
    forged.close().await.unwrap();
    drop(forged);
    std::fs::remove_dir_all(log).unwrap();
    std::fs::rename(empty, log).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_rewritten_to_its_end_is_found_by_its_rows() {
    let stand = Stand::start().await;
    let log = stand.server.data_dir.path().join("log");
    let empty = stand.server.data_dir.path().join("empty");
    copy(&log, &empty);
    let worker = stand.worker("w1", true, |_| {});
    let mut receipts = Vec::new();
    for session in ["s1", "s1", "s1", "s2"] {
        receipts.push(stand.call(session, Some(Kind::ToolCallCompleted)).await.1);
    }
    stand.caught_up().await;
    worker.stop().await;
    stand.log.close().await.unwrap();
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");

    let victim = receipts[1].position;
    rewrite(&log, &empty, |position, body| {
        (position == victim).then(|| body.replacen("\"response_chars\":300", "\"response_chars\":301", 1))
    })
    .await;
    let alone = run(&stand, true).await;
    assert!(alone.is_clean(), "nothing in the log says otherwise: {alone}");
    let report = verify(&stand).await;
    let found = first(&report);
    assert_eq!((found.0, found.1), ("row_changed", victim.0), "{report}");
    // So are all events behind it in its lane, by their links; and the checkpoint at the lane's end names another one.
    let kinds: Vec<(&str, u64)> =
        report.findings.iter().map(|finding| (finding.kind.as_str(), finding.position)).collect();
    let end = receipts[2].position.0;
    assert!(kinds.contains(&("row_changed", end)) && kinds.contains(&("checkpoint", end)), "{report}");
    let other = receipts[3].position.0;
    assert!(!kinds.iter().any(|kind| kind.1 == other), "another lane: {report}");
    stand.stop().await;
}
