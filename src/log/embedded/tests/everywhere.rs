//! Every kind of damage at every place: to a log that was closed, and to one whose process was killed.
//!
//! The files are on a disk in memory, so that each byte has its turn. For each damage the scan and the opening must name
//! the same first bad record, or find all records, and whatever they find, the files are what they were.

use std::collections::BTreeMap;

use super::*;
use crate::log::embedded::frame::{Codec, Decoded};
use crate::log::embedded::small::SegmentIndex;
use crate::log::embedded::storage::simulated::Disk;
use crate::log::embedded::{OpenError, segment};
use crate::log::{Log, LogId};

type Files = BTreeMap<String, Vec<u8>>;

/// File name, offset, position.
type Place = (String, u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

/// A log of some small segments by two processes, as files.
struct Specimen {
    how: End,
    log: LogId,
    disk: Disk,
    files: Files,
    written: Vec<Stored>,
    /// All frames, in order.
    frames: Vec<Extent>,
    bases: Vec<u64>,
    end: u64,
}

/// From where to where a frame reaches, as positions; `base` is its segment's.
#[derive(Debug, Clone, Copy)]
struct Extent {
    base: u64,
    start: u64,
    end: u64,
}

impl Extent {
    /// Its bytes in the file of its segment.
    fn range(self) -> std::ops::Range<usize> {
        size(self.start - self.base)..size(self.end - self.base)
    }

    fn place(self) -> Place {
        (segment::name(self.base), self.start - self.base, self.start)
    }
}

/// What a scan gives.
struct Seen {
    found: Vec<Stored>,
    error: Option<ReadError>,
    wrong_indexes: Vec<Place>,
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

fn small_options() -> Options {
    let options = Options { dir: PathBuf::from("/log"), ..options(&TempDir::new().unwrap()) };
    Options { segment_bytes: 1_024, ..options }
}

fn on(disk: Disk) -> Storage {
    Storage::simulated(Path::new("/log"), disk)
}

/// All files but the prepared room, which is no part of the log.
fn files(storage: &Storage) -> Files {
    let names = storage.list().unwrap();
    let mut files: Files =
        names.into_iter().map(|name| (name.clone(), storage.read(&name).unwrap().unwrap())).collect();
    files.remove(segment::PREPARED);
    files
}

fn open_on(storage: &Storage) -> Result<(Arc<EmbeddedLog>, Recovered), OpenError> {
    EmbeddedLog::open_in(&small_options(), Arc::new(SystemClock), storage.clone())
}

fn scan_on(storage: &Storage) -> Seen {
    let mut seen = Seen { found: Vec::new(), error: None, wrong_indexes: Vec::new() };
    let mut scanner = match Scanner::open_in(storage.clone()) {
        Ok(scanner) => scanner,
        Err(error) => return Seen { error: Some(error), ..seen },
    };
    loop {
        match scanner.next() {
            Ok(Some(scanned)) => {
                if let ScannedItem::Event(stored) = scanned.item {
                    seen.found.push(stored);
                }
            }
            Ok(None) => break,
            Err(error) => {
                seen.error = Some(error);
                break;
            }
        }
    }
    let wrong = scanner.take_wrong_indexes();
    seen.wrong_indexes = wrong.into_iter().map(|error| damage(Some(error))).collect();
    seen
}

/// All that a reader of an opened log gives, and how it ends when not with the log.
async fn read_all(log: &EmbeddedLog) -> (Vec<Stored>, Option<ReadError>) {
    let targets: Vec<_> = (0..3).map(|partition| (target(partition), None)).collect();
    let mut reader = log.reader(&targets).unwrap();
    let mut found = Vec::new();
    loop {
        match reader.next_ready(5).await {
            Ok(more) if more.is_empty() => return (found, None),
            Ok(more) => found.extend(more),
            Err(error) => return (found, Some(error)),
        }
    }
}

impl Specimen {
    async fn new(how: End) -> Self {
        let disk = Disk::new(1);
        let storage = on(disk.clone());
        let mut written = Vec::new();
        for process in 0..2 {
            let (log, _) = open_on(&storage).unwrap();
            for seq in process * 4..process * 4 + 4 {
                for partition in 0..3 {
                    let bytes = 60 + size(seq) * 7 + usize::try_from(partition).unwrap() * 20;
                    written.push(append(&log, frame(partition, seq, bytes)).await);
                }
            }
            if process == 0 {
                log.mark_closed(INCARNATION).await.unwrap();
            }
            if process == 0 || how == End::Closed {
                log.close().await.unwrap();
            }
        }
        let mut files = files(&storage);
        if how == End::Killed {
            storage.replace(segment::PREPARED, &[0; 2_000]).unwrap();
            files.insert(segment::PREPARED.into(), vec![0; 2_000]);
        }
        let scanner = Scanner::open_in(storage.clone()).unwrap();
        assert_eq!(scanner.is_clean(), how == End::Closed);
        let mut specimen = Self {
            how,
            log: scanner.log_id(),
            disk,
            files,
            written,
            frames: Vec::new(),
            bases: segment::bases(&storage).unwrap(),
            end: scanner.end().0,
        };
        specimen.find_frames();
        assert!(specimen.bases.len() >= 4 && specimen.bases.len() <= 9, "{:?}", specimen.bases);
        specimen
    }

    async fn both() -> [Self; 2] {
        [Self::new(End::Closed).await, Self::new(End::Killed).await]
    }

    fn find_frames(&mut self) {
        let codec = Codec::new(self.log);
        for &base in &self.bases {
            let bytes = &self.files[&segment::name(base)];
            let (mut start, until) = (base, self.segment_end(base));
            while start < until {
                let Decoded::Whole { bytes, .. } = codec.decode(start, &bytes[size(start - base)..]) else {
                    panic!("no frame at {start}")
                };
                self.frames.push(Extent { base, start, end: start + bytes as u64 });
                start += bytes as u64;
            }
        }
    }

    /// Where the segment at `base` ends.
    fn segment_end(&self, base: u64) -> u64 {
        self.bases.iter().copied().find(|&next| next > base).unwrap_or(self.end)
    }

    fn newest(&self) -> u64 {
        *self.bases.last().unwrap()
    }

    fn before(&self, position: u64) -> &[Stored] {
        &self.written[..self.written.iter().filter(|stored| stored.position.0 < position).count()]
    }

    fn frame_at(&self, position: u64) -> Extent {
        *self.frames.iter().find(|frame| (frame.start..frame.end).contains(&position)).unwrap()
    }

    /// The frames of one segment, its header first.
    fn frames_of(&self, base: u64) -> Vec<Extent> {
        self.frames.iter().copied().filter(|frame| frame.base == base).collect()
    }

    /// Those files on a disk of their own.
    fn storage(&self, files: &Files) -> Storage {
        let storage = on(self.disk.fork());
        for name in self.files.keys().filter(|&name| !files.contains_key(name)) {
            storage.remove(name).unwrap();
        }
        for (name, bytes) in files.iter().filter(|&(name, bytes)| self.files.get(name) != Some(bytes)) {
            storage.replace(name, bytes).unwrap();
        }
        storage
    }

    /// The files with one of them changed.
    fn with(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Files {
        let mut files = self.files.clone();
        change(files.get_mut(name).unwrap());
        files
    }

    /// A scan finds `place` first, after all records before it, and changes nothing.
    fn scan_finds(&self, files: &Files, place: &Place, what: &str) {
        let storage = self.storage(files);
        let seen = scan_on(&storage);
        assert_eq!(&damage(seen.error), place, "{what}");
        assert!(seen.found == self.before(place.2), "{what}: other records before it");
        assert!(storage_is(&storage, files), "{what}: the scan changed a file");
    }

    /// Opening finds damage at `place` (file and offset), and changes nothing.
    fn opening_finds(&self, files: &Files, place: &(String, u64), what: &str) {
        let storage = self.storage(files);
        match open_on(&storage) {
            Err(OpenError::Corrupt { file, offset, .. }) => {
                assert_eq!((&file, offset), (&Path::new("/log").join(&place.0), place.1), "{what}");
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: it was opened"),
        }
        assert!(storage_is(&storage, files), "{what}: opening changed a file");
    }

    /// Opening does not look there. A reader of the opened log finds `place`, after all records before it, and the
    /// segments are not changed.
    async fn a_reader_finds(&self, files: &Files, place: &Place, what: &str) {
        let storage = self.storage(files);
        let (log, recovered) = open_on(&storage).unwrap();
        assert_eq!(recovered.torn_bytes, 0, "{what}");
        let (found, error) = read_all(&log).await;
        assert_eq!(&damage(error), place, "{what}");
        assert!(found == self.before(place.2), "{what}: other records before it");
        self.segments_are_kept(&storage, files, what);
    }

    /// Everything is there, for a scan and for a reader of the opened log; `torn` bytes are cut off the end.
    async fn all_is_there(&self, files: &Files, torn: u64, what: &str) {
        let storage = self.storage(files);
        let (log, recovered) = open_on(&storage).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((recovered.torn_bytes, recovered.created), (torn, false), "{what}");
        assert!(read_all(&log).await == (self.written.clone(), None), "{what}: other records");
        for partition in 0..3 {
            assert_eq!(log.count_after(target(partition), None).await.unwrap(), 8, "{what}");
        }
        self.segments_are_kept(&storage, files, what);
    }

    /// The segments' bytes up to the end are what they were.
    fn segments_are_kept(&self, storage: &Storage, files: &Files, what: &str) {
        for &base in &self.bases {
            let name = segment::name(base);
            let (now, was) = (storage.read(&name).unwrap().unwrap(), &files[&name]);
            let until = size(self.segment_end(base) - base);
            assert!(now.get(..until) == was.get(..until), "{what}: {name} was changed");
        }
    }
}

fn storage_is(storage: &Storage, expected: &Files) -> bool {
    let mut expected = expected.clone();
    expected.remove(segment::PREPARED);
    files(storage) == expected
}

#[tokio::test]
async fn each_byte_of_a_closed_log_has_its_verdict() {
    each_byte(End::Closed).await;
}

#[tokio::test]
async fn each_byte_of_a_log_whose_process_was_killed_has_its_verdict() {
    each_byte(End::Killed).await;
}

async fn each_byte(how: End) {
    let specimen = Specimen::new(how).await;
    let mut flipped = 0;
    for (name, bytes) in &specimen.files {
        for offset in 0..bytes.len() {
            let files = specimen.with(name, |bytes| bytes[offset] ^= 1 << (offset % 8));
            let what = format!("{how:?}: byte {offset} of {name}");
            match name.as_str() {
                "log.json" => identity_is_wrong(&specimen, &files, &what),
                "watermark" => {
                    let place = ("watermark".to_owned(), 0, 0);
                    specimen.scan_finds(&files, &place, &what);
                    // It is derived: opening says so in the program's log, and reads the segment instead.
                    specimen.all_is_there(&files, 0, &what).await;
                }
                segment::PREPARED => {}
                name if name.ends_with(".idx") => {
                    index_is_wrong(&specimen, &files, name, offset, &what).await;
                }
                _ => segment_is_wrong(&specimen, &files, name, offset, &what).await,
            }
            flipped += 1;
        }
    }
    assert!(flipped > 10_000, "only {flipped} bytes");
}

fn identity_is_wrong(specimen: &Specimen, files: &Files, what: &str) {
    let disk = specimen.storage(files);
    match (scan_on(&disk).error, open_on(&disk)) {
        (
            Some(ReadError::Corrupt { file, offset: 0, position: 0, .. }),
            Err(OpenError::Corrupt { file: opened, offset: 0, .. }),
        ) => {
            assert_eq!((file.as_str(), opened.as_path()), ("/log/log.json", Path::new("/log/log.json")));
        }
        // A changed version number may read as a newer one.
        (Some(ReadError::Io { cause, .. }), Err(OpenError::Version { known: 1, .. })) => {
            assert!(cause.contains("is newer than this program knows"), "{what}: {cause}");
        }
        (scanned, opened) => panic!("{what}: {scanned:?}, {:?}", opened.err()),
    }
    assert!(storage_is(&disk, files), "{what}: a file was changed");
}

/// It is derived, so no record is in doubt; but it is said, and an opened log counts from the segment.
async fn index_is_wrong(specimen: &Specimen, files: &Files, name: &str, offset: usize, what: &str) {
    let base: u64 = name.trim_end_matches(".idx").parse().unwrap();
    assert_eq!(SegmentIndex::decode(specimen.log, &files[name]), None, "{what}");
    // Every byte is under the one checksum, so few of them need all that follows.
    if !offset.is_multiple_of(16) {
        return;
    }
    let disk = specimen.storage(files);
    let seen = scan_on(&disk);
    assert_eq!(
        (seen.error, seen.wrong_indexes),
        (None, vec![(name.to_owned(), 0, specimen.segment_end(base))]),
        "{what}"
    );
    assert!(seen.found == specimen.written, "{what}");
    assert!(storage_is(&disk, files), "{what}: a file was changed");
    specimen.all_is_there(files, 0, what).await;
}

async fn segment_is_wrong(specimen: &Specimen, files: &Files, name: &str, offset: usize, what: &str) {
    let base: u64 = name.trim_end_matches(".seg").parse().unwrap();
    let position = base + offset as u64;
    if position >= specimen.end {
        // Room that was never written: as if a write had been torn there.
        if offset.is_multiple_of(32) {
            specimen.all_is_there(files, position + 1 - specimen.end, what).await;
        }
        return;
    }
    let place = specimen.frame_at(position).place();
    specimen.scan_finds(files, &place, what);
    if base == specimen.newest() && specimen.how == End::Killed {
        specimen.opening_finds(files, &(place.0, place.1), what);
    } else if offset.is_multiple_of(32) {
        specimen.a_reader_finds(files, &place, what).await;
    }
}

#[tokio::test]
async fn each_record_taken_out_doubled_or_swapped_with_the_next_has_its_verdict() {
    for specimen in Specimen::both().await {
        for &base in &specimen.bases {
            let frames = specimen.frames_of(base);
            for (index, &frame) in frames.iter().enumerate() {
                taken_out(&specimen, frame);
                doubled(&specimen, frame).await;
                if let Some(&next) = frames.get(index + 1) {
                    swapped(&specimen, frame, next).await;
                }
            }
        }
    }
}

/// What opening says about a segment's file of another length: the layout tells, and for the newest segment of a log that
/// was killed its records.
fn lengths_differ(specimen: &Specimen, files: &Files, frame: Extent, what: &str) {
    let name = segment::name(frame.base);
    let length = files[&name].len() as u64;
    let offset = if frame.base == specimen.newest() && specimen.how == End::Killed {
        frame.start - frame.base
    } else {
        length.min(specimen.segment_end(frame.base) - frame.base)
    };
    specimen.opening_finds(files, &(name, offset), what);
}

fn taken_out(specimen: &Specimen, frame: Extent) {
    let what = format!("{:?}: {frame:?} taken out", specimen.how);
    let files = specimen.with(&segment::name(frame.base), |bytes| drop(bytes.drain(frame.range())));
    specimen.scan_finds(&files, &frame.place(), &what);
    lengths_differ(specimen, &files, frame, &what);
    let what = format!("{what}, and zeros in its place");
    let files = specimen.with(&segment::name(frame.base), |bytes| bytes[frame.range()].fill(0));
    specimen.scan_finds(&files, &frame.place(), &what);
}

async fn doubled(specimen: &Specimen, frame: Extent) {
    let what = format!("{:?}: {frame:?} doubled", specimen.how);
    let files = specimen.with(&segment::name(frame.base), |bytes| {
        let copy = bytes[frame.range()].to_vec();
        drop(bytes.splice(frame.range().end..frame.range().end, copy));
    });
    if frame.end == specimen.end && specimen.how == End::Killed {
        // Behind the end stands what no watermark and no later record vouches for: the rest of a write.
        specimen.all_is_there(&files, frame.end - frame.start, &what).await;
        let seen = scan_on(&specimen.storage(&files));
        assert!(seen.error.is_none() && seen.found == specimen.written, "{what}");
        return;
    }
    let place = (segment::name(frame.base), frame.end - frame.base, frame.end);
    specimen.scan_finds(&files, &place, &what);
    lengths_differ(specimen, &files, Extent { start: frame.end, ..frame }, &what);
}

async fn swapped(specimen: &Specimen, frame: Extent, next: Extent) {
    let what = format!("{:?}: {frame:?} and {next:?} swapped", specimen.how);
    let name = segment::name(frame.base);
    let files = specimen.with(&name, |bytes| {
        let both = frame.range().start..next.range().end;
        bytes[both].rotate_left(frame.range().len());
    });
    specimen.scan_finds(&files, &frame.place(), &what);
    if frame.base == specimen.newest() && specimen.how == End::Killed {
        specimen.opening_finds(&files, &(name, frame.start - frame.base), &what);
    } else {
        specimen.a_reader_finds(&files, &frame.place(), &what).await;
    }
}

#[tokio::test]
async fn each_segment_cut_anywhere_removed_or_exchanged_has_its_verdict() {
    for specimen in Specimen::both().await {
        for &base in &specimen.bases {
            let name = segment::name(base);
            let length = specimen.segment_end(base) - base;
            let boundaries = specimen.frames_of(base).into_iter().map(|frame| frame.start - base);
            for cut in boundaries.chain((0..length).step_by(37)).chain([length - 1]) {
                let what = format!("{:?}: {name} cut to {cut}", specimen.how);
                let files = specimen.with(&name, |bytes| bytes.truncate(size(cut)));
                let place = specimen.frame_at(base + cut).place();
                specimen.scan_finds(&files, &place, &what);
                let killed = base == specimen.newest() && specimen.how == End::Killed;
                specimen.opening_finds(&files, &(name.clone(), if killed { place.1 } else { cut }), &what);
            }
            removed(&specimen, base);
        }
        for (index, &one) in specimen.bases.iter().enumerate() {
            for &other in &specimen.bases[index + 1..] {
                exchanged(&specimen, one, other).await;
            }
        }
    }
}

fn removed(specimen: &Specimen, base: u64) {
    let what = format!("{:?}: the segment at {base} is removed", specimen.how);
    let mut files = specimen.files.clone();
    files.remove(&segment::name(base));
    // The one before it is the first that does not hold: the log goes on where its file ends.
    let previous = specimen.bases.iter().copied().rfind(|&other| other < base).unwrap_or(0);
    let place = (segment::name(previous), base - previous, base);
    specimen.scan_finds(&files, &place, &what);
    specimen.opening_finds(&files, &(place.0, place.1), &what);
}

async fn exchanged(specimen: &Specimen, one: u64, other: u64) {
    let what = format!("{:?}: the segments at {one} and {other} are exchanged", specimen.how);
    let mut files = specimen.files.clone();
    let names = [segment::name(one), segment::name(other)];
    let lengths = names.each_ref().map(|name| specimen.files[name].len() as u64);
    files.insert(names[0].clone(), specimen.files[&names[1]].clone());
    files.insert(names[1].clone(), specimen.files[&names[0]].clone());
    let place = (names[0].clone(), 0, one);
    specimen.scan_finds(&files, &place, &what);
    if lengths[0] == lengths[1] {
        specimen.a_reader_finds(&files, &place, &what).await;
    } else {
        let offset = lengths[1].min(specimen.segment_end(one) - one);
        specimen.opening_finds(&files, &(names[0].clone(), offset), &what);
    }
}

#[tokio::test]
async fn an_index_that_was_forged_with_its_checksum_is_found() {
    for specimen in Specimen::both().await {
        for &base in &specimen.bases {
            let name = segment::index_name(base);
            let Some(bytes) = specimen.files.get(&name) else {
                assert_eq!((specimen.how, base), (End::Killed, specimen.newest()), "{name} is missing");
                continue;
            };
            let index = SegmentIndex::decode(specimen.log, bytes).unwrap();
            let forgeries: [fn(&mut SegmentIndex); 7] = [
                |index| index.base += 1,
                |index| index.end -= 1,
                |index| index.rolling ^= 1,
                |index| index.base_counts[1] += 1,
                |index| index.state.counts[2] += 1,
                |index| index.marks.clear(),
                |index| index.state.lanes.clear(),
            ];
            for (number, forge) in forgeries.into_iter().enumerate() {
                let mut forged = index.clone();
                forge(&mut forged);
                let files = specimen.with(&name, |bytes| *bytes = forged.encode(specimen.log));
                let seen = scan_on(&specimen.storage(&files));
                assert!(seen.error.is_none() && seen.found == specimen.written, "{name}, {number}");
                let expected = if forged == index {
                    vec![]
                } else {
                    vec![(name.clone(), 0, specimen.segment_end(base))]
                };
                assert_eq!(seen.wrong_indexes, expected, "{name}, forgery {number}");
            }
        }
        let none =
            Files::from_iter(specimen.files.clone().into_iter().filter(|(name, _)| !name.ends_with(".idx")));
        assert_eq!(scan_on(&specimen.storage(&none)).wrong_indexes, [], "one that is missing is no fault");
        specimen.all_is_there(&none, 0, "without indexes").await;
    }
}

#[tokio::test]
async fn a_damaged_record_is_damage_to_whoever_asks_for_it_and_never_missing() {
    let specimen = Specimen::new(End::Closed).await;
    for (index, stored) in specimen.written.iter().enumerate() {
        let (position, bad) = (stored.position, specimen.frame_at(stored.position.0));
        let (name, partition) = (segment::name(bad.base), stored.frame.target);
        let files = specimen.with(&name, |bytes| bytes[bad.range().end - 1] ^= 1);
        let (log, _) = open_on(&specimen.storage(&files)).unwrap();
        assert_eq!(damage(log.frame_at(partition, position).await.err()), bad.place());
        assert_eq!(damage(log.count_after(partition, Some(position)).await.err()), bad.place());
        let resumed = log.reader(&[(partition, Some(position))]).unwrap().next_ready(9).await;
        assert_eq!(damage(resumed.err()), bad.place());
        // Whoever asks for a place inside a whole record asked wrongly.
        if let Some(next) = specimen.written.get(index + 1) {
            let inside = Position(next.position.0 + 5);
            let error = log.frame_at(partition, inside).await.unwrap_err();
            let behind = specimen.frame_at(inside.0).base == bad.base;
            assert_eq!(matches!(error, ReadError::NotFound(at) if at == inside), !behind, "{error}");
        }
    }
}
