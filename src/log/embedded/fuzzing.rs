//! What must hold for any bytes where the engine's files should be. See [`crate::fuzzing`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::frame::{Codec, Decoded, Item, PREFIX_BYTES, Place, TARGETS};
use super::small::{
    IDENTITY, IdentityError, SegmentIndex, WATERMARK, Watermark, decode_identity, encode_identity,
};
use super::storage::Storage;
use super::tracker::Tracker;
use super::{EmbeddedLog, OpenError, Options, ScannedItem, Scanner, segment as files};
use crate::base::{SystemClock, Timestamp, sha256};
use crate::event::{Topic, TopicPartition};
use crate::log::{Frame, LogId, Position, ReadError, Stored};

const LOG: LogId = LogId(Uuid::from_u128(1));

/// Takes fields from the front of an input; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0)) << 8 | usize::from(self.byte().unwrap_or(0))
    }

    /// A number below `bound`, which may be 0: then 0.
    fn below(&mut self, bound: usize) -> usize {
        self.number().checked_rem(bound).unwrap_or(0)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Bytes as the frames of a segment. The first byte chooses: all are read as they are; or they are pieces (a length of two
/// bytes, then that many) that each become the inside of a frame whose length and checksum fit, as a forger's would. What
/// decodes, encodes to the same bytes.
pub fn segment(input: &[u8]) {
    let codec = Codec::new(LOG);
    let mut input = Input(input);
    if input.byte().unwrap_or(0) % 2 == 0 {
        let mut at = 0;
        while let Some(rest) = input.0.get(at..).filter(|rest| !rest.is_empty()) {
            at += decodes(codec, at as u64, rest).unwrap_or(1);
        }
        return;
    }
    let mut at = 0;
    while !input.0.is_empty() {
        let count = input.below(4_096);
        let mut frame = vec![0; PREFIX_BYTES];
        frame.extend_from_slice(input.bytes(count));
        codec.seal(at, &mut frame);
        decodes(codec, at, &frame);
        at += frame.len() as u64;
    }
}

/// The size of the frame that starts `bytes` at `position`, if one does.
fn decodes(codec: Codec, position: u64, bytes: &[u8]) -> Option<usize> {
    let Decoded::Whole { bytes: size, crc, write_start, item } = codec.decode(position, bytes) else {
        return None;
    };
    let place = Place { position, write_start };
    let mut again = Vec::new();
    let crc_again = match item {
        Item::Event(event) => codec.encode_event(place, &event.to_frame(), &mut again),
        Item::Closed { incarnation, at } => codec.encode_closed(place, incarnation, at, &mut again),
        // Those of a version with fewer topics are read, but not written.
        Item::Header(header) if header.state.counts.len() < TARGETS => return Some(size),
        Item::Header(header) => {
            let tracker = Tracker::at(header.base, header.rolling, header.state);
            let (bytes, crc) = codec.encode_header(header.log, position, header.previous, &tracker);
            again = bytes;
            crc
        }
    };
    assert_eq!(bytes.get(..size), Some(again.as_slice()), "it encodes to other bytes");
    assert_eq!(crc, crc_again);
    Some(size)
}

/// Bytes as one of the small files. The first byte chooses which one, and whether it gets a checksum that fits. What
/// decodes, encodes to the same bytes.
pub fn small_file(input: &[u8]) {
    let mut input = Input(input);
    let choice = input.byte().unwrap_or(0);
    let mut bytes = input.0.to_vec();
    if choice >= 128 {
        reseal(&mut bytes);
    }
    match choice % 3 {
        0 => match decode_identity(&bytes) {
            Ok(log) => assert_eq!(encode_identity(log), bytes),
            Err(IdentityError::Version(found)) => assert!(found > super::FORMAT_VERSION),
            Err(IdentityError::Damaged(_)) => {}
        },
        1 => {
            if let Some(watermark) = Watermark::decode(LOG, &bytes) {
                assert_eq!(watermark.encode(LOG), bytes);
            }
        }
        _ => {
            if let Some(index) = SegmentIndex::decode(LOG, &bytes) {
                assert_eq!(index.encode(LOG), bytes);
            }
        }
    }
}

/// Gives a watermark or an index the checksum that its bytes have.
fn reseal(bytes: &mut [u8]) {
    if let Some((content, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c::crc32c(content).to_be_bytes();
    }
}

type Files = BTreeMap<String, Vec<u8>>;

/// A log of some segments, and its records in order.
struct Original {
    files: Files,
    records: Vec<Stored>,
    /// Where each frame starts, with the base of its segment.
    frames: Vec<(u64, u64)>,
}

impl Original {
    /// Always the same bytes.
    fn new(clean: bool) -> Self {
        let codec = Codec::new(LOG);
        let (mut tracker, mut position) = (Tracker::new(), 0);
        let mut original = Self { files: Files::new(), records: Vec::new(), frames: Vec::new() };
        original.files.insert(IDENTITY.into(), encode_identity(LOG));
        for number in 0..3 {
            let base = position;
            let (mut bytes, crc) = codec.encode_header(LOG, base, tracker.base(), &tracker);
            tracker.header(base, crc);
            original.frames.push((base, base));
            position = base + bytes.len() as u64;
            for index in 0..4 {
                let frame = frame(number * 4 + index);
                let place = Place { position, write_start: position };
                let crc = codec.encode_event(place, &frame, &mut bytes);
                original.take(&mut tracker, base, position, crc, frame);
                position = base + bytes.len() as u64;
            }
            if number < 2 || clean {
                let index = SegmentIndex::of(&tracker, position);
                original.files.insert(files::index_name(base), index.encode(LOG));
            } else {
                bytes.resize(bytes.len() + 256, 0);
            }
            original.files.insert(files::name(base), bytes);
        }
        original.files.insert(WATERMARK.into(), Watermark { end: position, clean }.encode(LOG));
        original
    }

    fn take(&mut self, tracker: &mut Tracker, base: u64, position: u64, crc: u32, frame: Frame) {
        let key = super::tracker::LaneKey { incarnation: frame.incarnation, target: frame.target };
        let (seq, link, recorded_at) = (frame.seq, frame.link, frame.recorded_at);
        tracker.event(position, crc, key, super::tracker::Head { seq, link, recorded_at });
        self.records.push(Stored { position: Position(position), frame });
        self.frames.push((base, position));
    }
}

fn frame(number: u64) -> Frame {
    let body = vec![b'a'; 20 + usize::try_from(number).unwrap_or(0) * 3];
    let partition = u32::try_from(number % 2).unwrap_or(0);
    Frame {
        target: TopicPartition { topic: Topic::ToolCalls, partition },
        incarnation: Uuid::from_u128(7),
        seq: number / 2,
        recorded_at: Timestamp::from_micros(1_000),
        content: sha256(&body),
        link: sha256(&number.to_be_bytes()),
        body: Bytes::from(body),
    }
}

/// A log in `dir` that was changed as the input says: no panic, and without forged checksums whatever is read is the
/// beginning of what was written; a scan that finds nothing wrong has all of it; opening takes nothing away.
///
/// The first byte chooses a closed log or one whose process was killed; then each change takes some bytes.
pub fn directory(dir: &Path, input: &[u8]) {
    let mut input = Input(input);
    let mut log = Original::new(input.byte().unwrap_or(0) % 2 == 0);
    let mut forged = false;
    while let Some(change) = input.byte() {
        forged |= apply(change, &mut log, &mut input);
    }
    write(dir, &log.files);
    let (found, error) = scan(dir);
    if !forged {
        assert!(log.records.starts_with(&found), "a scan found other records");
        assert!(
            error.is_some() || found.len() == log.records.len(),
            "a scan misses records and says nothing"
        );
    }
    let options = Options {
        dir: dir.to_owned(),
        segment_bytes: 4_096,
        in_flight_records_max: 4,
        in_flight_bytes_max: 1_024,
        reserve_wait: Duration::ZERO,
        append_wait: Duration::from_secs(60),
    };
    match EmbeddedLog::open(options, Arc::new(SystemClock)) {
        Ok((opened, _)) => drop(opened),
        Err(OpenError::Corrupt { .. } | OpenError::Version { .. }) => return,
        Err(error) => unreachable!("{error}"),
    }
    let (after, error_after) = scan(dir);
    if forged {
        return;
    }
    assert!(log.records.starts_with(&after), "an opened log has other records");
    // What cannot be scanned at all may be opened all the same: its watermark is derived.
    let unscanned = matches!(&error, Some(ReadError::Corrupt { file, .. }) if !file.ends_with(".seg"));
    if !unscanned && log.files.contains_key(IDENTITY) {
        assert_eq!((after, error_after), (found, error), "opening changed what a scan finds");
    }
}

/// Makes one change. `true` when it is one that only a forger makes.
fn apply(change: u8, log: &mut Original, input: &mut Input<'_>) -> bool {
    let names: Vec<String> = log.files.keys().cloned().collect();
    let name = names.get(input.below(names.len())).cloned().unwrap_or_default();
    let Some(mut bytes) = log.files.remove(&name) else { return false };
    let (at, length) = (input.below(bytes.len()), bytes.len());
    let mut forged = false;
    match change % 10 {
        0 => flip(&mut bytes, at, input.byte().unwrap_or(0)),
        1 => bytes.truncate(at),
        2 => bytes.splice(at..at, input.bytes(at % 64).to_vec()).for_each(drop),
        3 => bytes.drain(at..(at + input.below(512)).min(length)).for_each(drop),
        4 => {
            let (to, count) = (input.below(length), input.below(512).min(length - at));
            let copied = bytes.get(at..at + count).unwrap_or_default().to_vec();
            bytes.splice(to..to, copied).for_each(drop);
        }
        5 => {
            let other = names.get(input.below(names.len())).cloned().unwrap_or_default();
            if let Some(other) = log.files.get_mut(&other) {
                std::mem::swap(other, &mut bytes);
            }
        }
        6 => return false,
        7 => {
            let new = input.bytes(at % 64);
            for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
                *byte = *new;
            }
        }
        8 => {
            let base = input.bytes(8).iter().fold(0, |base: u64, &byte| base << 8 | u64::from(byte));
            log.files.insert(files::name(base), bytes.clone());
        }
        _ => {
            flip(&mut bytes, at, input.byte().unwrap_or(0));
            reseal_file(log, &name, &mut bytes, at);
            forged = true;
        }
    }
    log.files.insert(name, bytes);
    forged
}

fn flip(bytes: &mut [u8], at: usize, bits: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= bits;
    }
}

/// Gives the frame or the small file around `at` a checksum that fits.
fn reseal_file(log: &Original, name: &str, bytes: &mut [u8], at: usize) {
    let at = at as u64;
    let of_this = |&&(base, start): &&(u64, u64)| files::name(base) == name && start - base <= at;
    let Some(&(base, start)) = log.frames.iter().rfind(of_this) else { return reseal(bytes) };
    let end = log.frames.iter().find(|&&(of, other)| of == base && other > start).map(|frame| frame.1 - base);
    let range = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let until = end.map_or(bytes.len(), range).min(bytes.len());
    if let Some(frame) = bytes.get_mut(range(start - base)..until).filter(|frame| frame.len() > PREFIX_BYTES)
    {
        Codec::new(LOG).seal(start, frame);
    }
}

fn write(dir: &Path, files: &Files) {
    let storage = Storage::new(dir);
    storage.create_dir().expect("the directory can be made");
    let old = storage.list().expect("the directory can be read");
    for name in old {
        storage.remove(&name).expect("a file can be removed");
    }
    for (name, bytes) in files {
        let path: PathBuf = dir.join(name);
        let file =
            storage.open_write(name).unwrap_or_else(|error| unreachable!("{}: {error}", path.display()));
        file.write_at(bytes, 0).expect("a file can be written");
    }
}

fn scan(dir: &Path) -> (Vec<Stored>, Option<ReadError>) {
    let mut found = Vec::new();
    let mut scanner = match Scanner::open(dir) {
        Ok(scanner) => scanner,
        Err(error) => return (found, Some(error)),
    };
    loop {
        match scanner.next() {
            Ok(Some(scanned)) => {
                if let ScannedItem::Event(stored) = scanned.item {
                    found.push(stored);
                }
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}
