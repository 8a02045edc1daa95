//! What every log engine must do, as the port's contract says it (`annals::log`). Each test is written once, over
//! `Arc<dyn Log>`; an engine adds a [`Backend`], one line below, and nothing to the tests. It knows no engine's files.

mod appending;
mod embedded;
mod lifetime;
mod reading;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use annals::base::{Timestamp, sha256};
use annals::event::{Topic, TopicPartition};
use annals::log::{AppendError, Frame, Log, Position, ReadError, Reader, Refusal, Reservation, Stored};
use bytes::Bytes;
use futures::future::BoxFuture;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

/// The longest that anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a backend cannot do, so that the tests of it are left out. The zero value runs everything.
#[derive(Debug, Clone, Copy, Default)]
struct Cannot {
    /// [`Place::change`].
    change: bool,
    /// [`Place::keep`] and [`Place::put_back`].
    put_back: bool,
    /// [`Place::writes_fail`].
    fail: bool,
}

/// What a log may take: small, so that the tests come to the bounds.
#[derive(Debug, Clone, Copy)]
struct Limits {
    records: u32,
    bytes: u64,
    wait: Duration,
}

impl Limits {
    const SMALL: Self = Self { records: 32, bytes: 8 * 1024, wait: Duration::from_secs(20) };
}

/// One engine.
trait Backend: Send + Sync {
    /// Its name among the tests.
    fn name(&self) -> &'static str;

    fn cannot(&self) -> Cannot {
        Cannot::default()
    }

    /// A fresh place for one log.
    fn place(&self, limits: Limits) -> Box<dyn Place>;
}

/// Where one log lives, whether it is open or not. It goes away with everything in it.
trait Place: Send + Sync {
    /// Makes the log, or opens the one that is there. One handle at a time.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Log>>;

    /// Changes one stored byte of `stored` behind the log's back.
    fn change(&self, stored: &Stored);

    /// Copies the log, which nobody has open.
    fn keep(&self);

    /// Puts the copy in the place of what is there; nobody has the log open.
    fn put_back(&self);

    /// From now on every write of this whole process fails, or none does.
    fn writes_fail(&self, fail: bool);
}

/// One line of tests for a backend.
macro_rules! conformance {
    ($name:ident, $backend:expr, [$($area:ident::$test:ident,)*]) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::super::$area::$test(&$backend).await;
                }
            )*
        }
    };
    ($name:ident, $backend:expr) => {
        conformance!($name, $backend, [
            appending::positions_increase_in_the_order_of_append,
            appending::an_acked_record_is_read_at_once,
            appending::each_key_keeps_its_order_under_many_writers,
            appending::the_same_event_twice_is_kept_twice,
            appending::records_and_bytes_in_flight_are_bounded_and_come_back,
            appending::who_waits_for_room_gets_it_when_it_comes_back,
            appending::a_record_over_its_reservation_is_refused_and_harms_nobody,
            appending::a_refused_event_is_not_written_and_takes_no_number,
            appending::an_uncertain_append_keeps_its_place_in_its_lane,
            reading::replay_equals_live_across_reopenings,
            reading::a_reader_gives_only_what_is_asked_for,
            reading::a_reader_that_is_dropped_while_waiting_loses_nothing,
            reading::a_reader_from_the_end_gives_what_comes_later,
            reading::a_stalled_reader_never_stalls_the_writer,
            reading::counts_are_what_a_reader_gives,
            reading::positions_are_exact_and_others_are_not_found,
            reading::a_changed_record_is_never_given,
            lifetime::its_id_stays_and_a_fresh_log_has_another,
            lifetime::a_closed_log_refuses_and_lets_its_readers_finish,
            lifetime::an_older_copy_does_not_pass_for_the_log,
        ]);
    };
}

mod on {
    conformance!(embedded, super::super::embedded::Embedded);
}

const INCARNATION: Uuid = Uuid::from_u128(7);

fn target(partition: u32) -> TopicPartition {
    TopicPartition { topic: Topic::ToolCalls, partition }
}

/// A frame whose body is `bytes` long and like no other's.
fn frame(target: TopicPartition, incarnation: Uuid, seq: u64, bytes: usize) -> Frame {
    let mut body = format!("{target} {incarnation} {seq} ").into_bytes();
    // Bytes of any value: a log must not mind.
    body.extend((body.len()..bytes).map(|index| u8::try_from((index * 7 + bytes) % 256).unwrap()));
    body.truncate(bytes);
    Frame {
        target,
        incarnation,
        seq,
        recorded_at: Timestamp::from_micros(1_000_000 + i64::try_from(seq).unwrap()),
        content: sha256(&body),
        link: sha256(&seq.to_be_bytes()),
        body: Bytes::from(body),
    }
}

async fn append(log: &dyn Log, frame: Frame) -> Stored {
    let room = log.reserve(1, frame.body.len() as u64).await.unwrap();
    let position = log.append(room, frame.clone()).await.unwrap();
    Stored { position, frame }
}

/// `count` records over three partitions, of lengths that `random` draws; many in flight at once.
async fn fill(log: &dyn Log, count: usize, random: &mut Random) -> Vec<Stored> {
    let mut acks = Vec::new();
    let mut seqs = [0; 3];
    for _ in 0..count {
        let partition = random.below(3);
        let seq = &mut seqs[partition];
        let frame = frame(target(u32::try_from(partition).unwrap()), Uuid::new_v4(), *seq, random.below(400));
        *seq += 1;
        let room = log.reserve(1, frame.body.len() as u64).await.unwrap();
        let ack = log.append(room, frame.clone());
        acks.push(async move { Stored { position: ack.await.unwrap(), frame } });
    }
    futures::future::join_all(acks).await
}

type ByPartition = BTreeMap<TopicPartition, Vec<Stored>>;

/// The port promises an order within each partition, and none between them.
fn by_partition(all: impl IntoIterator<Item = Stored>) -> ByPartition {
    let mut partitions = ByPartition::new();
    for stored in all {
        partitions.entry(stored.frame.target).or_default().push(stored);
    }
    partitions
}

/// The next `count` frames, in batches of at most `batch()`.
async fn take(reader: &mut dyn Reader, count: usize, mut batch: impl FnMut() -> usize) -> Vec<Stored> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let records_max = batch().min(count - taken.len());
        let some = within(reader.next(records_max)).await.unwrap();
        assert!((1..=records_max).contains(&some.len()), "{} for at most {records_max}", some.len());
        taken.extend(some);
    }
    taken
}

/// All that `log` has of `targets` now.
async fn read_all(log: &dyn Log, targets: &[TopicPartition]) -> ByPartition {
    let from: Vec<_> = targets.iter().map(|&target| (target, None)).collect();
    let mut reader = log.reader(&from).unwrap();
    let mut all = Vec::new();
    loop {
        let some = within(reader.next_ready(100)).await.unwrap();
        if some.is_empty() {
            return by_partition(all);
        }
        all.extend(some);
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it ends in time")
}

fn refusal(result: Result<Reservation, AppendError>) -> Refusal {
    match result {
        Err(AppendError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A position far behind the end.
fn beyond(last: &Stored) -> Position {
    Position(last.position.0 + (1 << 20))
}

fn not_found<T>(result: Result<T, ReadError>, position: Position) {
    match result.err() {
        Some(ReadError::NotFound(at)) => assert_eq!(at, position),
        other => panic!("{position} was to be missing, but {other:?}"),
    }
}

/// Seeded draws; the seed is printed, to be seen when a test fails.
struct Random(ChaCha8Rng);

impl Random {
    fn new(seed: u64) -> Self {
        std::io::Write::write_all(&mut std::io::stderr(), format!("seed {seed}\n").as_bytes()).unwrap();
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.0.next_u64() % bound as u64).unwrap()
    }
}

/// Whether this process runs `test` alone. If not, another one does so now, and must pass.
async fn alone(backend: &dyn Backend, test: &str) -> bool {
    const VARIABLE: &str = "ANNALS_TEST_ALONE";
    let name = format!("log_conformance::on::{}::{test}", backend.name());
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let mut command = Command::new("sh");
    // A write over the size limit is to fail, and not to end the process.
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap()).args([&name, "--exact"]).env(VARIABLE, "1");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    false
}
