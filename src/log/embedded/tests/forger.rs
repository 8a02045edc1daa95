//! A forger who knows the format: how much he must rewrite, and what finds him where.
//!
//! He changes one event and then goes as far as a step of [`Depth`] says. What he rewrites in the files of the log is
//! whole: every checksum is fresh. `tests/it/verify/forger.rs` goes on where the log alone has no answer.

use std::collections::HashMap;

use super::*;
use crate::base::Clock;
use crate::event::{
    AckCheck, AckClass, Draft, Facts, LaneClosed, LaneHead, Link, Personal, SystemCheckpoint, ZERO_LINK,
};
use crate::log::embedded::frame::{Codec, Decoded, Item, Place};
use crate::log::embedded::segment;
use crate::log::embedded::small::SegmentIndex;
use crate::log::embedded::tracker::{Head, LaneKey, Tracker};
use crate::verify;

/// How far he goes. Each step includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// Another body, with the frame's checksum.
    Checksum,
    /// The digest of the body too.
    Digest,
    /// The event's own link too.
    Link,
    /// The links of all events behind it in its lane too.
    Suffix,
    /// Headers with their rolling checksums, and indexes, too.
    Headers,
    /// The events that state heads and ends of lanes too, with the lane that they stand in.
    Statements,
}

/// Events of one process start on two lanes over some segments.
struct Scene {
    dir: TempDir,
    calls: Vec<Stored>,
    checkpoint: Position,
    closing: Position,
}

const CALLS: TopicPartition = TopicPartition { topic: Topic::ToolCalls, partition: 1 };
const SYSTEM: TopicPartition = TopicPartition { topic: Topic::System, partition: 2 };
/// Events of the lane before and behind the one that states its head.
const BEFORE: u64 = 24;
const BEHIND: u64 = 12;

/// A lane as the real ones are.
struct Lane {
    target: TopicPartition,
    seq: u64,
    link: Link,
}

impl Lane {
    const fn new(target: TopicPartition) -> Self {
        Self { target, seq: 0, link: ZERO_LINK }
    }

    fn next(&mut self, body: Bytes) -> Frame {
        let mut frame = Frame {
            target: self.target,
            incarnation: INCARNATION,
            seq: self.seq,
            recorded_at: Timestamp::from_micros(1_000),
            content: sha256(&body),
            link: [0; 32],
            body,
        };
        frame.link = frame.link_behind(&self.link);
        (self.seq, self.link) = (self.seq + 1, frame.link);
        frame
    }

    fn head(&self) -> LaneHead {
        let TopicPartition { topic, partition } = self.target;
        LaneHead { topic, partition, seq: self.seq - 1, link: hex::encode(self.link) }
    }
}

fn body(facts: &Facts) -> Bytes {
    let draft = Draft {
        source: "urn:annals:default".into(),
        incarnation: INCARNATION,
        ack: AckClass::Fsync,
        ack_check: AckCheck::Verified,
        redactor: crate::redact::Redactor::shared(),
    };
    draft.build(SystemClock.now(), "k", facts, &Personal::default()).unwrap().body
}

async fn scene() -> Scene {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let (mut calls, mut system) = (Lane::new(CALLS), Lane::new(SYSTEM));
    let mut written = Vec::new();
    let mut call = async |calls: &mut Lane| {
        let fill = "x".repeat(200);
        let text = format!("{{\"n\":{},\"fill\":\"{fill}\"}}", calls.seq);
        written.push(append(&log, calls.next(text.into())).await);
    };
    for _ in 0..BEFORE {
        call(&mut calls).await;
    }
    let heads = vec![calls.head()];
    let stated = system.next(body(&Facts::Checkpoint(SystemCheckpoint { heads })));
    let checkpoint = append(&log, stated).await.position;
    for _ in 0..BEHIND {
        call(&mut calls).await;
    }
    let closed = LaneClosed { lane_incarnation: INCARNATION, head: calls.head() };
    let closing = append(&log, system.next(body(&Facts::LaneClosed(closed)))).await.position;
    let closed = LaneClosed { lane_incarnation: INCARNATION, head: system.head() };
    append(&log, system.next(body(&Facts::LaneClosed(closed)))).await;
    log.mark_closed(INCARNATION).await.unwrap();
    log.close().await.unwrap();
    Scene { dir, calls: written, checkpoint, closing }
}

/// At work on a log, event by event.
struct Forger {
    depth: Depth,
    /// The number of the event in the lane of calls that he changes.
    victim: u64,
    links: HashMap<TopicPartition, Link>,
    /// Links as they were and as he made them, in hex.
    replaced: Vec<(String, String)>,
}

impl Forger {
    fn touch(&mut self, frame: &mut Frame) {
        let (old, is_victim) = (frame.link, frame.target == CALLS && frame.seq == self.victim);
        if is_victim {
            frame.body = String::from_utf8(frame.body.to_vec()).unwrap().replace("xxx", "yyy").into();
        } else if self.depth == Depth::Statements && frame.target == SYSTEM {
            let mut text = String::from_utf8(frame.body.to_vec()).unwrap();
            for (old, new) in &self.replaced {
                text = text.replace(old, new);
            }
            frame.body = text.into();
        }
        if self.depth >= Depth::Digest {
            frame.content = sha256(&frame.body);
        }
        if self.depth >= Depth::Suffix || self.depth == Depth::Link && is_victim {
            let prev = self.links.get(&frame.target).copied().unwrap_or(ZERO_LINK);
            frame.link = frame.link_behind(&prev);
        }
        self.links.insert(frame.target, frame.link);
        if old != frame.link {
            self.replaced.push((hex::encode(old), hex::encode(frame.link)));
        }
    }
}

/// Rewrites the files of the log in `dir` to the given depth; sizes stay what they are.
fn forge(dir: &Path, depth: Depth, victim: u64) {
    let mut forger = Forger { depth, victim, links: HashMap::new(), replaced: Vec::new() };
    let storage = Storage::new(dir);
    let scanner = Scanner::open(dir).unwrap();
    let (log, end) = (scanner.log_id(), scanner.end().0);
    let codec = Codec::new(log);
    let bases = segment::bases(&storage).unwrap();
    let mut tracker = Tracker::new();
    for &base in &bases {
        let until = bases.iter().copied().find(|&next| next > base).unwrap_or(end);
        let bytes = storage.read(&segment::name(base)).unwrap().unwrap();
        let (mut out, mut at) = (Vec::new(), base);
        while at < until {
            let here = &bytes[usize::try_from(at - base).unwrap()..];
            let Decoded::Whole { bytes: size, crc, write_start, item } = codec.decode(at, here) else {
                panic!("no frame at {at}")
            };
            match item {
                Item::Event(event) => {
                    let mut frame = event.to_frame();
                    forger.touch(&mut frame);
                    let crc = codec.encode_event(Place { position: at, write_start }, &frame, &mut out);
                    let key = LaneKey { incarnation: frame.incarnation, target: frame.target };
                    let Frame { seq, link, recorded_at, .. } = frame;
                    tracker.event(at, crc, key, Head { seq, link, recorded_at });
                }
                Item::Header(header) if depth >= Depth::Headers => {
                    let (bytes, crc) = codec.encode_header(log, base, header.previous, &tracker);
                    out.extend(bytes);
                    tracker.header(at, crc);
                }
                other => {
                    out.extend_from_slice(&here[..size]);
                    tracker.apply(at, crc, &other);
                }
            }
            at += size as u64;
        }
        assert_eq!(out.len(), bytes.len());
        storage.replace(&segment::name(base), &out).unwrap();
        if depth >= Depth::Headers {
            let index = SegmentIndex::of(&tracker, until);
            storage.replace(&segment::index_name(base), &index.encode(log)).unwrap();
        }
    }
}

/// Kind and position of each finding of `verify` on the log alone.
async fn findings(dir: &Path) -> Vec<(&'static str, u64)> {
    let progress = Box::new(|_, _| {});
    let options = verify::Options { log_dir: dir.to_owned(), log_only: true, postgres: None, progress };
    let report = verify::run(options).await.unwrap();
    report.findings.iter().map(|finding| (finding.kind.as_str(), finding.position)).collect()
}

#[tokio::test]
async fn a_forger_is_found_at_the_first_thing_that_he_did_not_rewrite() {
    let scene = scene().await;
    let log = options(&scene.dir);
    let bases: Vec<u64> = segments(&log).iter().map(|(base, _)| *base).collect();
    let end = Scanner::open(&log.dir).unwrap().end().0;
    assert!(bases.len() >= 4, "{bases:?}");
    assert_eq!(findings(&log.dir).await, []);
    for victim in [0, 7, BEFORE - 1, BEFORE, BEFORE + BEHIND - 1] {
        let at = |number: u64| scene.calls[usize::try_from(number).unwrap()].position.0;
        let (here, next) = (at(victim), (victim + 1 < BEFORE + BEHIND).then(|| at(victim + 1)));
        let (checkpoint, closing) = (("heads", scene.checkpoint.0), ("lane_end", scene.closing.0));
        // The next header and the index of the segment vouch for all before their place.
        let vouched = ("log_corrupt", bases.iter().copied().find(|&base| base > here).unwrap_or(end));
        let stated = if victim < BEFORE { vec![checkpoint, closing] } else { vec![closing] };
        let behind = match next {
            Some(next) if victim + 1 == BEFORE => vec![checkpoint, ("link", next)],
            Some(next) => vec![("link", next)],
            None => vec![closing],
        };
        for (depth, mut expected) in [
            (Depth::Checksum, vec![("log_corrupt", here)]),
            (Depth::Digest, vec![("link", here), vouched]),
            (Depth::Link, [behind, vec![vouched]].concat()),
            (Depth::Suffix, [stated.clone(), vec![vouched]].concat()),
            (Depth::Headers, stated),
            // Nothing in the log says otherwise: this is for the rows, or for a head that was kept elsewhere.
            (Depth::Statements, vec![]),
        ] {
            if matches!(depth, Depth::Digest | Depth::Link | Depth::Suffix) {
                // Behind a header that does not hold, nothing is read.
                expected.retain(|found| found.1 <= vouched.1);
            }
            let (_copy, forged) = copy(&log);
            forge(&forged.dir, depth, victim);
            let mut found = findings(&forged.dir).await;
            // The index and the header behind it stand at one place.
            found.dedup();
            assert_eq!(found, expected, "event {victim}, {depth:?}");
            if depth >= Depth::Headers {
                assert_eq!(scan(&forged).1, None, "the engine does not know of chains");
                let (log, recovered) = open(&forged);
                assert_eq!((recovered.torn_bytes, recovered.unclosed.len()), (0, 0));
                drop(log);
            }
        }
    }
}
