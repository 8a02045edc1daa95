//! What the engine does when the disk fails it, and when somebody takes its files away: it refuses with the cause, loses nothing
//! that was acknowledged, and goes on by itself.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use futures::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::event::{Gap, GapCause};
use crate::log::embedded::allocate::{self, Job};
use crate::log::embedded::writer::{Command, Writer};
use crate::log::embedded::{GAP_BYTES, OutageLabels, Parts, let_go, storage};
use crate::log::{AppendError, Health, Refusal, Reservation};

type Outages = UnboundedReceiver<(Gap, Reservation)>;

/// Bounded, so that a broken log fails a test instead of hanging it.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("in time")
}

fn watched(log: &EmbeddedLog) -> Outages {
    let (send, receive) = unbounded_channel();
    log.on_recovery(Box::new(move |outage, room| drop(send.send((outage, room)))));
    receive
}

fn open_watched(options: &Options) -> (Arc<EmbeddedLog>, Outages) {
    let (log, _) = open(options);
    let outages = watched(&log);
    (log, outages)
}

/// An outage is over, and the log accepts again.
async fn over(outages: &mut Outages, log: &EmbeddedLog) -> (Gap, Reservation) {
    let told = within(outages.recv()).await.unwrap();
    within(async {
        while log.health() != Health::Accepting {
            tokio::task::yield_now().await;
        }
    })
    .await;
    told
}

async fn refusal(log: &EmbeddedLog) -> String {
    match log.reserve(1, 10).await {
        Err(AppendError::Refused(Refusal::Suspended(cause))) => cause,
        other => panic!("not suspended: {other:?}"),
    }
}

/// Until the log says that it refuses.
async fn refusing(log: &EmbeddedLog) -> String {
    within(async {
        loop {
            match log.health() {
                Health::Refusing(cause) => return cause,
                Health::Accepting => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

/// Everything from the start, by a reader and from outside.
async fn all(log: &EmbeddedLog, options: &Options, count: usize) -> Vec<Stored> {
    let mut reader =
        log.reader(&(0..3).map(|partition| (target(partition), None)).collect::<Vec<_>>()).unwrap();
    let mut read = Vec::new();
    while read.len() < count {
        read.extend(within(reader.next(100)).await.unwrap());
    }
    let (scanned, error) = scan(options);
    assert_eq!(error, None);
    assert_eq!(scanned, read);
    read
}

/// What to fail, how, and how that is told.
struct Failure {
    hit: fn(&Operation) -> bool,
    error: fn() -> io::Error,
    cause: GapCause,
    told: &'static str,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn is_segment(file: &str) -> bool {
    file.ends_with(".seg")
}

fn writes_segment(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { file, .. } if is_segment(file))
}

fn syncs_segment(operation: &Operation) -> bool {
    matches!(operation, Operation::SyncData { file } if is_segment(file))
}

const FAILURES: [Failure; 6] = [
    Failure { hit: writes_segment, error: || errno(5), cause: GapCause::Io, told: "cannot write 0" },
    Failure { hit: syncs_segment, error: || errno(5), cause: GapCause::Io, told: "cannot sync 0" },
    Failure {
        hit: writes_segment,
        error: || io::Error::new(io::ErrorKind::WriteZero, "failed to write whole buffer"),
        cause: GapCause::ShortWrite,
        told: "failed to write whole buffer",
    },
    Failure {
        hit: writes_segment,
        error: || errno(28),
        cause: GapCause::NoSpace,
        told: "No space left on device",
    },
    Failure { hit: syncs_segment, error: || errno(122), cause: GapCause::NoSpace, told: "quota exceeded" },
    Failure {
        hit: |operation| matches!(operation, Operation::Write { file, .. } if file == "watermark"),
        error: || errno(30),
        cause: GapCause::ReadOnly,
        told: "Read-only file system",
    },
];

/// Fails as told while `left` is not 0, and then also what a rescue needs, so that none succeeds before.
fn failing(failure: &'static Failure, left: &Arc<AtomicUsize>) -> Observer {
    let left = left.clone();
    Arc::new(move |operation| {
        let rescue = matches!(operation, Operation::Rename { to, .. } if to == "watermark");
        let hit = (failure.hit)(operation) || rescue;
        let take = |left: usize| left.checked_sub(1);
        if hit && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err((failure.error)());
        }
        Ok(())
    })
}

#[tokio::test]
async fn a_failure_that_passes_is_told_and_nobody_else_notices() {
    for failure in &FAILURES {
        let dir = TempDir::new().unwrap();
        let options = options(&dir);
        let left = Arc::new(AtomicUsize::new(0));
        let log = observed(&options, failing(failure, &left));
        let mut outages = watched(&log);
        let mut written = vec![append(&log, frame(0, 0, 10)).await];
        left.store(1, Ordering::SeqCst);
        written.push(append(&log, frame(0, 1, 10)).await);
        let (outage, room) = over(&mut outages, &log).await;
        let Gap { cause, detail, refused, rewritten, began_at, ended_at } = outage;
        assert_eq!((cause, refused, rewritten), (failure.cause, 0, 1));
        assert!(detail.contains(failure.told), "{detail}");
        assert!(began_at <= ended_at);
        assert_eq!(room.bytes(), GAP_BYTES);
        drop(room);
        written.push(append(&log, frame(0, 2, 10)).await);
        assert_eq!(all(&log, &options, 3).await, written);
        assert_eq!(log.stats().in_flight_records.get(), 0);
        assert_eq!((log.stats().reserved_records.get(), log.stats().reserved_bytes.get()), (0, 0));
        log.close().await.unwrap();
        assert_eq!(scan(&options), (written, None));
    }
}

#[tokio::test]
async fn a_failure_that_lasts_is_refused_with_its_cause_until_it_is_over_and_nothing_is_lost() {
    for failure in &FAILURES {
        let dir = TempDir::new().unwrap();
        let options = options(&dir);
        let left = Arc::new(AtomicUsize::new(0));
        let log = observed(&options, failing(failure, &left));
        let mut outages = watched(&log);
        let mut follower = log.reader(&[(target(0), None)]).unwrap();
        let kept = append(&log, frame(0, 0, 10)).await;
        let mut promised = log.reserve(2, 20).await.unwrap();
        left.store(usize::MAX, Ordering::SeqCst);

        let error = send(&log, frame(0, 1, 10)).await.await.unwrap_err();
        assert!(
            matches!(&error, AppendError::Uncertain(cause) if cause.contains(&(failure.error)().to_string())),
            "{error:?}"
        );
        assert!(refusal(&log).await.contains(&(failure.error)().to_string()));
        assert!(
            matches!(log.health(), Health::Refusing(cause) if cause.contains(&(failure.error)().to_string()))
        );
        assert_eq!(log.stats().failed.get(), 1);
        // What was promised before is kept for later.
        for seq in [2, 3] {
            let error = log.append(promised.take(10).unwrap(), frame(0, seq, 10)).await.unwrap_err();
            assert!(matches!(error, AppendError::Uncertain(_)), "{error:?}");
        }
        assert_eq!(within(follower.next(10)).await.unwrap(), std::slice::from_ref(&kept));
        assert_eq!(follower.next_ready(10).await.unwrap(), [], "nobody sees what is not durable");

        left.store(0, Ordering::SeqCst);
        let (outage, gap) = over(&mut outages, &log).await;
        assert_eq!((outage.cause, outage.refused, outage.rewritten), (failure.cause, 1, 3));
        assert!(outage.detail.contains(failure.told), "{}", outage.detail);
        within(log.append(gap, frame(0, 4, 10))).await.unwrap();
        let after = within(async {
            while log.health() != Health::Accepting {
                tokio::task::yield_now().await;
            }
            append(&log, frame(0, 5, 10)).await
        })
        .await;
        let found = all(&log, &options, 6).await;
        let seqs: Vec<u64> = found.iter().map(|stored| stored.frame.seq).collect();
        assert_eq!(seqs, [0, 1, 2, 3, 4, 5]);
        assert_eq!((&found[0], &found[5]), (&kept, &after));
        assert_eq!(within(follower.next(10)).await.unwrap(), found[1..]);
        let outages_counted = log
            .stats()
            .outages
            .get_or_create(&crate::log::embedded::OutageLabels { cause: failure.cause.as_str() })
            .get();
        assert_eq!((log.stats().failed.get(), outages_counted), (0, 1));
        assert_eq!((log.stats().reserved_records.get(), log.stats().in_flight_records.get()), (0, 0));
        drop(log);
        let (log, _) = open(&options);
        assert_eq!(all(&log, &options, 6).await, found);
    }
}

#[tokio::test]
async fn a_log_that_is_closed_in_trouble_says_so_and_keeps_what_it_acknowledged() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let left = Arc::new(AtomicUsize::new(0));
    let log = observed(&options, failing(&FAILURES[1], &left));
    let kept = append(&log, frame(0, 0, 10)).await;
    left.store(usize::MAX, Ordering::SeqCst);
    send(&log, frame(0, 1, 10)).await.await.unwrap_err();
    let error = log.close().await.unwrap_err();
    assert!(
        matches!(&error, AppendError::Uncertain(cause) if cause.contains("Input/output error")),
        "{error:?}"
    );
    drop(log);
    let (log, _) = open(&options);
    let mut reader = log.reader(&[(target(0), None)]).unwrap();
    assert_eq!(within(reader.next(1)).await.unwrap(), [kept]);
    append(&log, frame(0, 9, 10)).await;
}

#[tokio::test]
async fn a_segment_that_cannot_be_started_is_started_elsewhere() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let armed = Arc::new(AtomicBool::new(false));
    let log = observed(&options, {
        let armed = armed.clone();
        Arc::new(move |operation| match operation {
            Operation::Rename { from, .. }
                if from == "next.prepared" && armed.swap(false, Ordering::SeqCst) =>
            {
                Err(errno(5))
            }
            _ => Ok(()),
        })
    });
    let mut outages = watched(&log);
    let mut written = fill(&log, 3, 100).await;
    armed.store(true, Ordering::SeqCst);
    let mut seq = 0;
    let (outage, room) = loop {
        seq += 1;
        written.push(append(&log, frame(1, seq, 100)).await);
        if let Ok(told) = outages.try_recv() {
            break told;
        }
    };
    drop(room);
    for seq in seq + 1..=60 {
        written.push(append(&log, frame(1, seq, 100)).await);
    }
    assert_eq!((outage.cause, outage.rewritten), (GapCause::Io, 0));
    assert!(outage.detail.starts_with("cannot start the next segment, 0"), "{}", outage.detail);
    assert!(outages.try_recv().is_err(), "one outage only");
    assert_eq!(all(&log, &options, 63).await, written);
}

/// The newest segment's file.
fn newest(options: &Options) -> PathBuf {
    segments(options).pop().unwrap().1
}

/// What somebody may do to the file that is written.
type Harm = fn(&Path);

const HARMS: [(Harm, GapCause, &str); 6] = [
    (|file| std::fs::remove_file(file).unwrap(), GapCause::Missing, "is not there any more"),
    (
        |file| std::fs::rename(file, file.with_extension("away")).unwrap(),
        GapCause::Missing,
        "is not there any more",
    ),
    (
        |file| {
            std::fs::copy(file, file.with_extension("copy")).unwrap();
            std::fs::rename(file.with_extension("copy"), file).unwrap();
        },
        GapCause::Replaced,
        "another file stands in the place of",
    ),
    (|file| cut_to(file, 0), GapCause::Resized, "bytes, where the log has"),
    (|file| cut_to(file, 900), GapCause::Resized, "bytes, where the log has"),
    (|file| cut_to(file, 100_000), GapCause::Resized, "bytes, where the log has"),
];

fn cut_to(file: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(file).unwrap().set_len(bytes).unwrap();
}

#[tokio::test]
async fn a_segment_that_is_taken_away_cut_or_replaced_is_made_whole_from_memory() {
    for (harm, cause, told) in HARMS {
        for idle in [true, false] {
            let dir = TempDir::new().unwrap();
            let options = options(&dir);
            let (log, mut outages) = open_watched(&options);
            let mut written = fill(&log, 4, 100).await;
            let mut follower =
                log.reader(&(0..3).map(|partition| (target(partition), None)).collect::<Vec<_>>()).unwrap();
            // It has the file open that is about to be lost, and has not read all of it.
            let mut followed = within(follower.next(4)).await.unwrap();
            for seq in 4..9 {
                written.push(append(&log, frame(u32::try_from(seq % 3).unwrap(), seq / 3, 100)).await);
            }
            let room = log.reserve(1, 10).await.unwrap();
            harm(&newest(&options));
            // With traffic the sync's look finds it before an ack; without, the writer looks by itself.
            let mut room = Some(room);
            if !idle {
                let position = log.append(room.take().unwrap(), frame(0, 3, 10)).await.unwrap();
                written.push(Stored { position, frame: frame(0, 3, 10) });
            }
            let (outage, _) = over(&mut outages, &log).await;
            assert_eq!(outage.cause, cause, "{}", outage.detail);
            assert!(outage.detail.contains(told), "{}", outage.detail);
            if idle {
                written.push(append(&log, frame(0, 3, 10)).await);
            }
            assert_eq!(all(&log, &options, 10).await, written);
            while followed.len() < 10 {
                followed.extend(within(follower.next(100)).await.unwrap());
            }
            assert_eq!(followed, written);
            log.close().await.unwrap();
            assert_eq!(scan(&options), (written, None));
        }
    }
}

#[tokio::test]
async fn an_ack_never_stands_for_a_file_that_lost_its_name() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let gate = Arc::new(Gate::default());
    let log = observed(&options, gate.observer());
    append(&log, frame(0, 0, 10)).await;
    gate.shut();
    let ack = send(&log, frame(0, 1, 10)).await;
    gate.arrived();
    // Between the write and the return of the sync.
    std::fs::remove_file(newest(&options)).unwrap();
    gate.open();
    let position = ack.await.unwrap();
    let (found, error) = scan(&options);
    assert_eq!(error, None);
    assert_eq!(found.last().map(|stored| (stored.position, stored.frame.seq)), Some((position, 1)));
}

#[tokio::test]
async fn a_directory_that_is_away_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, mut outages) = open_watched(&options);
    let kept = append(&log, frame(0, 0, 10)).await;
    let away = options.dir.with_file_name("away");
    std::fs::rename(&options.dir, &away).unwrap();
    let error = send(&log, frame(0, 1, 10)).await.await.unwrap_err();
    assert!(
        matches!(&error, AppendError::Uncertain(cause) if cause.contains("directory is not there")),
        "{error:?}"
    );
    assert_eq!(refusing(&log).await, "the log cannot write: the log's directory is not there any more");

    // Another one in its place is not ours, even as an exact copy: somebody else may own it.
    std::fs::create_dir(&options.dir).unwrap();
    for entry in std::fs::read_dir(&away).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), options.dir.join(entry.file_name())).unwrap();
    }
    let not_ours = within(async {
        loop {
            let cause = refusal(&log).await;
            if cause.contains("not the one that this process locked") {
                return cause;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    not_ours.await;
    std::fs::remove_dir_all(&options.dir).unwrap();
    std::fs::rename(&away, &options.dir).unwrap();

    let (outage, _) = over(&mut outages, &log).await;
    assert_eq!((outage.cause, outage.rewritten), (GapCause::DirectoryMissing, 1));
    assert!(outage.refused > 0);
    let found = all(&log, &options, 2).await;
    assert_eq!((&found[0], found[1].frame.seq), (&kept, 1));
    append(&log, frame(0, 2, 10)).await;
}

#[tokio::test]
async fn a_lost_identity_is_written_again() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, mut outages) = open_watched(&options);
    append(&log, frame(0, 0, 10)).await;
    let identity = std::fs::read(options.dir.join("log.json")).unwrap();
    std::fs::remove_file(options.dir.join("log.json")).unwrap();
    assert_eq!(over(&mut outages, &log).await.0.detail, "log.json is not there any more");
    assert_eq!(std::fs::read(options.dir.join("log.json")).unwrap(), identity);
}

#[tokio::test]
async fn a_lost_lock_is_told_from_a_directory_that_was_replaced() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    append(&log, frame(0, 0, 10)).await;
    let (lock, away) = (options.dir.join("lock"), options.dir.join("away"));
    std::fs::rename(&lock, &away).unwrap();
    assert_eq!(refusing(&log).await, "the log cannot write: the log's lock is not there any more");
    std::fs::rename(&away, &lock).unwrap();
    within(async {
        while log.health() != Health::Accepting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    append(&log, frame(0, 1, 10)).await;
}

#[tokio::test]
async fn a_lost_watermark_is_written_again() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, mut outages) = open_watched(&options);
    let kept = append(&log, frame(0, 0, 10)).await;
    std::fs::remove_file(options.dir.join("watermark")).unwrap();
    assert_eq!(over(&mut outages, &log).await.0.detail, "watermark is not there any more");
    assert_eq!(scan(&options), (vec![kept], None));
}

#[tokio::test]
async fn a_disk_that_does_not_answer_is_not_waited_for_without_end() {
    let dir = TempDir::new().unwrap();
    let options = Options { append_wait: Duration::from_millis(50), ..options(&dir) };
    let gate = Arc::new(Gate::default());
    let log = observed(&options, gate.observer());
    append(&log, frame(0, 0, 10)).await;
    gate.shut();
    let error = send(&log, frame(0, 1, 10)).await.await.unwrap_err();
    assert_eq!(error, AppendError::Uncertain("the disk has not answered for 50 ms".into()));
    let cause = refusal(&log).await;
    assert!(cause.starts_with("the disk has not answered for "), "{cause}");
    assert!(matches!(log.health(), Health::Refusing(_)));
    gate.open();
    let after = within(async {
        while log.health() != Health::Accepting {
            tokio::task::yield_now().await;
        }
        append(&log, frame(0, 2, 10)).await
    })
    .await;
    let found = all(&log, &options, 3).await;
    assert_eq!((found[1].frame.seq, &found[2]), (1, &after));
}

#[tokio::test]
async fn a_disk_without_room_for_the_next_segment_is_told_of_once_there_is_some() {
    let dir = TempDir::new().unwrap();
    let options = Options { segment_bytes: 64 * 1024, in_flight_bytes_max: 64 * 1024, ..options(&dir) };
    let full = Arc::new(AtomicBool::new(false));
    let log = observed(&options, {
        let full = full.clone();
        Arc::new(move |operation| match operation {
            Operation::Allocate { .. } if full.load(Ordering::SeqCst) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        })
    });
    let mut outages = watched(&log);
    append(&log, frame(0, 0, 10)).await;
    full.store(true, Ordering::SeqCst);
    let mut seq = 0;
    let refusal = loop {
        match log.reserve(1, 10_000).await {
            Ok(room) => {
                seq += 1;
                log.append(room, frame(0, seq, 10_000)).await.unwrap();
            }
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, AppendError::Refused(Refusal::Full(_))), "{refusal:?}");
    assert_eq!(log.reserve(1, 10_000).await.unwrap_err(), refusal);
    let cause = OutageLabels { cause: "no_space" };
    let figures = || (log.stats().failed.get(), log.stats().outages.get_or_create(&cause).get());
    assert_eq!(figures(), (1, 1));
    full.store(false, Ordering::SeqCst);
    // Who asks for room or for the log's health has it tried again.
    within(async {
        while log.health() != Health::Accepting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (outage, room) = over(&mut outages, &log).await;
    assert_eq!((outage.cause, outage.refused, outage.rewritten), (GapCause::NoSpace, 2, 0));
    assert!(outage.detail.starts_with("cannot allocate "), "{}", outage.detail);
    assert_eq!((room.bytes(), figures()), (GAP_BYTES, (0, 1)));
    drop(room);
    append(&log, frame(0, seq + 1, 10_000)).await;
    assert!(outages.try_recv().is_err(), "one outage only");
}

/// A log whose threads are played by the test, so that what a turn takes in is known.
struct Played {
    log: EmbeddedLog,
    lock: storage::Lock,
    writer: Writer,
    commands: Receiver<Command>,
    jobs: Receiver<Job>,
    options: Options,
}

impl Played {
    fn open(options: &Options, observer: Observer) -> Self {
        let storage = Storage::observed(&options.dir, observer);
        let (log, parts, _) = EmbeddedLog::assemble(options, Arc::new(SystemClock), storage).unwrap();
        let Parts { lock, writer, commands, jobs } = parts;
        Self { log, lock, writer, commands, jobs, options: options.clone() }
    }

    fn help(&self) {
        while let Ok(job) = self.jobs.try_recv() {
            allocate::perform(&self.log.shared, self.options.segment_bytes, job);
        }
    }

    /// The helper's jobs, then one turn with all that waits.
    fn turn(&mut self) {
        self.help();
        let first = self.commands.try_recv().unwrap();
        assert!(self.writer.turn(first, &self.commands));
    }

    async fn append(&mut self, frame: Frame) -> Stored {
        let ack = send(&self.log, frame.clone()).await;
        self.turn();
        Stored { position: within(ack).await.unwrap(), frame }
    }
}

#[tokio::test]
async fn an_outage_that_ends_within_a_turn_is_one_outage() {
    let dir = TempDir::new().unwrap();
    let left = Arc::new(AtomicUsize::new(0));
    let mut played = Played::open(&options(&dir), failing(&FAILURES[1], &left));
    let mut outages = watched(&played.log);
    for seq in 0..3 {
        played.append(frame(0, seq, 900)).await;
    }
    // One that still fits and one that does not: the sync between them fails.
    let acks = [send(&played.log, frame(0, 3, 10)).await, send(&played.log, frame(0, 4, 900)).await];
    left.store(1, Ordering::SeqCst);
    played.turn();
    for ack in acks {
        within(ack).await.unwrap();
    }
    let (outage, room) = outages.try_recv().unwrap();
    assert_eq!((outage.cause, outage.rewritten), (GapCause::Io, 1), "{}", outage.detail);
    drop(room);
    let again = outages.try_recv().ok().map(|(outage, _)| outage);
    assert_eq!(again, None, "one outage only");
}

#[tokio::test]
async fn a_reader_ends_with_a_log_that_was_closed_in_trouble() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let left = Arc::new(AtomicUsize::new(0));
    let log = observed(&options, failing(&FAILURES[1], &left));
    append(&log, frame(0, 0, 10)).await;
    let mut reader = log.reader(&[(target(0), None)]).unwrap();
    left.store(usize::MAX, Ordering::SeqCst);
    send(&log, frame(0, 1, 10)).await.await.unwrap_err();
    std::fs::rename(&options.dir, options.dir.with_file_name("away")).unwrap();
    log.close().await.unwrap_err();
    // Nobody puts the files in order any more.
    assert!(matches!(within(reader.next(10)).await, Err(ReadError::Closed)));
}

#[tokio::test]
async fn an_outage_delays_the_finding_of_damage_and_does_not_hide_it() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let left = Arc::new(AtomicUsize::new(0));
    let log = observed(&options, failing(&FAILURES[1], &left));
    let mut outages = watched(&log);
    let written = fill(&log, 60, 100).await;
    let (base, damaged) = segments(&options).swap_remove(2);
    edit(&damaged, |bytes| bytes[400] ^= 1);
    left.store(usize::MAX, Ordering::SeqCst);
    send(&log, frame(0, 20, 10)).await.await.unwrap_err();
    let mut reader =
        log.reader(&(0..3).map(|partition| (target(partition), None)).collect::<Vec<_>>()).unwrap();
    let mut read = Vec::new();
    loop {
        let found = reader.next_ready(100).await.unwrap();
        if found.is_empty() {
            break;
        }
        read.extend(found);
    }
    assert_eq!(read, written[..read.len()]);
    assert!(read.len() > 10 && read.last().unwrap().position.0 < base + 400);
    left.store(0, Ordering::SeqCst);
    over(&mut outages, &log).await;
    let error = within(reader.next(100)).await.unwrap_err();
    assert!(matches!(&error, ReadError::Corrupt { file, .. } if Path::new(file) == damaged), "{error:?}");
}

#[tokio::test]
async fn a_close_looks_at_the_files_first() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let (log, _) = open(&options);
    let written = fill(&log, 3, 10).await;
    std::fs::remove_file(newest(&options)).unwrap();
    log.close().await.unwrap();
    assert_eq!(scan(&options), (written, None));
}

#[tokio::test]
async fn a_log_in_the_place_of_ours_is_not_touched() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let mut played = Played::open(&options, Arc::new(|_| Ok(())));
    std::fs::rename(&options.dir, options.dir.with_file_name("away")).unwrap();
    let (other, _) = open(&options);
    let names = || {
        let mut names = Storage::new(&options.dir).list().unwrap();
        names.sort();
        names
    };
    let before = names();
    assert!(before.iter().any(|name| name == "next.prepared"), "{before:?}");
    // The first append starts a segment.
    let ack = send(&played.log, frame(0, 0, 10)).await;
    played.turn();
    let error = within(ack).await.unwrap_err();
    assert!(
        matches!(&error, AppendError::Uncertain(cause) if cause.contains("not the one that this process locked")),
        "{error:?}"
    );
    assert_eq!(names(), before);
    let_go(&played.log.shared, played.lock);
    assert_eq!(names(), before);
    let written = fill(&other, 30, 100).await;
    other.close().await.unwrap();
    assert_eq!(scan(&options), (written, None));
}

#[tokio::test]
async fn the_room_of_a_rescue_that_failed_is_there_for_the_next_one() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let left = Arc::new(AtomicUsize::new(0));
    let full = Arc::new(AtomicBool::new(false));
    // The disk holds the segment that is written and one more.
    let mut played = Played::open(&options, {
        let (left, full, dir) = (left.clone(), full.clone(), options.dir.clone());
        Arc::new(move |operation| match operation {
            Operation::SyncData { .. }
                if left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok() =>
            {
                Err(errno(5))
            }
            Operation::Allocate { .. } if full.load(Ordering::SeqCst) => {
                let mut entries = std::fs::read_dir(&dir).unwrap();
                let is_long =
                    |entry: io::Result<std::fs::DirEntry>| entry.unwrap().metadata().unwrap().len() > 4096;
                if entries.any(is_long) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            }
            _ => Ok(()),
        })
    });
    let kept = played.append(frame(0, 0, 10)).await;
    let ack = send(&played.log, frame(0, 1, 10)).await;
    played.help();
    full.store(true, Ordering::SeqCst);
    // The batch's sync and the one of the rescue in the prepared segment.
    left.store(2, Ordering::SeqCst);
    played.turn();
    within(ack).await.unwrap_err();
    for _ in 0..3 {
        played.writer.try_rescue();
    }
    assert!(!played.writer.in_trouble());
    let found = all(&played.log, &options, 2).await;
    assert_eq!((&found[0], found[1].frame.seq), (&kept, 1));
}

#[tokio::test]
async fn an_ack_never_stands_for_a_lock_that_was_lost() {
    let dir = TempDir::new().unwrap();
    let options = options(&dir);
    let mut played = Played::open(&options, Arc::new(|_| Ok(())));
    let kept = played.append(frame(0, 0, 10)).await;
    let ack = send(&played.log, frame(0, 1, 10)).await;
    std::fs::remove_file(options.dir.join("lock")).unwrap();
    let ours = Mutex::new(Some((played, ack)));
    let (told, answers) = std::sync::mpsc::channel();
    // The other process found the end, and is about to cut what stands behind it.
    let (other, _) = {
        let storage = Storage::observed(
            &options.dir,
            Arc::new(move |operation| {
                if matches!(operation, Operation::Truncate { file, .. } if is_segment(file))
                    && let Some((mut played, ack)) = ours.lock().unwrap().take()
                {
                    played.turn();
                    told.send(ack.now_or_never().unwrap()).unwrap();
                }
                Ok(())
            }),
        );
        EmbeddedLog::open_in(&options, Arc::new(SystemClock), storage).unwrap()
    };
    let error = answers.recv().unwrap().unwrap_err();
    assert!(
        matches!(&error, AppendError::Uncertain(cause) if cause.contains("not the one that this process locked")),
        "{error:?}"
    );
    assert_eq!(all(&other, &options, 1).await, [kept]);
}

#[tokio::test]
async fn a_shortage_that_ends_without_room_to_tell_of_it_is_told_later() {
    let dir = TempDir::new().unwrap();
    let options = Options { segment_bytes: 16 * 1024, in_flight_bytes_max: 64 * 1024, ..options(&dir) };
    let full = Arc::new(AtomicBool::new(false));
    let mut played = Played::open(&options, {
        let full = full.clone();
        Arc::new(move |operation| match operation {
            Operation::Allocate { .. } if full.load(Ordering::SeqCst) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        })
    });
    let mut outages = watched(&played.log);
    let ack = send(&played.log, frame(0, 0, 10)).await;
    full.store(true, Ordering::SeqCst);
    played.turn();
    within(ack).await.unwrap();
    played.help();
    let held = played.log.reserve(1, 9_000).await.unwrap();
    let error = played.log.reserve(1, 9_000).await.unwrap_err();
    assert!(matches!(error, AppendError::Refused(Refusal::Full(_))), "{error:?}");
    full.store(false, Ordering::SeqCst);
    // Asking has it tried again, after a moment.
    within(async {
        while outages.is_empty() && played.log.reserve(1, 9_000).now_or_never().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    played.help();
    assert_eq!(outages.try_recv().ok().map(|(outage, _)| outage), None, "there is no room to tell of it");
    drop(held);
    for seq in 1..4 {
        played.append(frame(0, seq, 7_000)).await;
    }
    played.help();
    let (outage, room) = outages.try_recv().unwrap();
    assert_eq!((outage.cause, room.bytes()), (GapCause::NoSpace, GAP_BYTES));
}
