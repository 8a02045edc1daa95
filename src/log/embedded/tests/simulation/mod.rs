//! Simulated crashes: the engine's own code on a disk in memory that stops anywhere and loses what was not synced.
//!
//! One seed is one life of a log with several crashes in it, and the same on every run. It drives the writer and the
//! helper in one thread, so a crash lies between, before or in the middle of any of their operations.

mod life;
mod model;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use self::life::{Life, Tally};
use crate::log::embedded::storage::simulated::Moment;

/// Crashes of an ordinary run, and of a long one.
const CRASHES: u64 = 10_000;
const CRASHES_LONG: u64 = 1_000_000;

fn variable(name: &str) -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "how much a test does, and which seed it repeats, is no setting"
    )]
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Lives through one seed. Gives what happened, or what did not hold.
fn live(seed: u64, traced: bool) -> Result<Tally, String> {
    let mut life = Life::new(seed);
    if traced {
        life.trace();
    }
    let result = catch_unwind(AssertUnwindSafe(|| life.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", text.or_else(|| panic.downcast_ref().copied()).unwrap_or("?")))
    });
    result.map_err(|cause| if traced { format!("{cause}\n{}", life.traced().join("\n")) } else { cause })
}

/// Lives through seeds, from `first` on, until there were `wanted` crashes; all processors take part.
fn survive(first: u64, wanted: u64) -> Tally {
    let (next, total) = (AtomicU64::new(first), Mutex::new(Tally::default()));
    // One failure is enough: the others stop.
    let failed = AtomicBool::new(false);
    let work = || -> Result<(), (u64, String)> {
        while !failed.load(Ordering::Relaxed) && total.lock().unwrap().crashes < wanted {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let tally = live(seed, false).map_err(|cause| {
                failed.store(true, Ordering::Relaxed);
                (seed, cause)
            })?;
            total.lock().unwrap().add(&tally);
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let failure = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap().err()).min()
    });
    if let Some((seed, cause)) = failure {
        let told = live(seed, true).err().unwrap_or(cause);
        panic!("{told}\nthe seed was {seed}; ANNALS_SIM_SEED={seed} runs only it again");
    }
    total.into_inner().unwrap()
}

/// Where it must have crashed, before, within and behind: all that a log does to a disk.
const PLACES: [(&str, &str); 26] = [
    ("make", "the directory"),
    ("sync the name of", "the directory"),
    ("sync the names of", "the directory"),
    ("create", "log.json.tmp"),
    ("rename", "log.json.tmp"),
    ("create", "next.prepared"),
    ("set the length of", "next.prepared"),
    ("sync", "next.prepared"),
    ("write", "next.prepared"),
    ("sync the data of", "next.prepared"),
    ("rename", "next.prepared"),
    ("remove", "next.prepared"),
    ("write", ".seg"),
    ("sync the data of", ".seg"),
    ("set the length of", ".seg"),
    ("sync", ".seg"),
    ("write", ".idx.tmp"),
    ("rename", ".idx.tmp"),
    ("write", "watermark"),
    ("sync the data of", "watermark"),
    ("sync", "watermark"),
    ("rename", "watermark.tmp"),
    ("write", "anchor.json.tmp"),
    ("rename", "anchor.json.tmp"),
    ("remove", ".seg"),
    ("remove", ".idx"),
];

/// A simulation that never comes to the hard places proves nothing.
fn worth_something(tally: &Tally) {
    for (verb, file) in PLACES {
        for moment in [Moment::Before, Moment::Within, Moment::Behind] {
            let count = tally.stops.get(&(verb, file, moment)).copied().unwrap_or(0);
            assert!(count > 0, "no crash {moment:?} {verb} {file}: {tally:#?}");
        }
    }
    for (what, count, least) in [
        ("crashes while opening", tally.in_opening, 10),
        ("openings that errors ended", tally.failed_openings, 2),
        ("killed processes", tally.killed, 10),
        ("torn tails", tally.torn, 1),
        ("drops of old segments", tally.drops, 10),
        ("records that survive without an ack", tally.unanswered_kept, 10),
        ("records without an ack that are lost", tally.unanswered_lost, 10),
        ("disks that worked again", tally.healed, 5),
        ("records that were late", tally.late, 20),
    ] {
        assert!(count * 100 >= tally.crashes * least, "only {count} {what}: {tally:#?}");
    }
}

#[test]
fn every_acknowledged_record_survives_a_crash_anywhere() {
    if let Some(seed) = variable("ANNALS_SIM_SEED") {
        let seed = seed.parse().expect("ANNALS_SIM_SEED is a number");
        let told = live(seed, true);
        assert!(told.is_ok(), "seed {seed}: {}", told.unwrap_err());
        return;
    }
    let wanted = if variable("ANNALS_TEST_LONG").is_some() { CRASHES_LONG } else { CRASHES };
    worth_something(&survive(1, wanted));
}
