//! All events of a log, through its reader or from its files.

use std::path::Path;

use annals::event::{Decoded, TopicPartition};
use annals::log::embedded::{ScannedItem, Scanner};
use annals::log::{Log, Stored};

fn decoded(stored: &Stored) -> Decoded {
    Decoded::read(stored.frame.target.topic, &stored.frame.body).unwrap()
}

/// What a reader of every partition gets, up to now.
pub(crate) async fn events(log: &dyn Log) -> Vec<Decoded> {
    let all: Vec<_> = TopicPartition::all().map(|target| (target, None)).collect();
    let mut reader = log.reader(&all).unwrap();
    let mut events = Vec::new();
    loop {
        let batch = reader.next_ready(100).await.unwrap();
        if batch.is_empty() {
            return events;
        }
        events.extend(batch.iter().map(decoded));
    }
}

/// What the files in `log_dir` hold, read beside whoever owns them.
pub(crate) fn events_in(log_dir: &Path) -> Vec<Decoded> {
    let mut scanner = Scanner::open(log_dir).unwrap();
    let mut events = Vec::new();
    while let Some(scanned) = scanner.next().unwrap() {
        if let ScannedItem::Event(stored) = scanned.item {
            events.push(decoded(&stored));
        }
    }
    events
}
