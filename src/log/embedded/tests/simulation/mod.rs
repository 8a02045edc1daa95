//! Simulated crashes: the engine's own code on a disk in memory that stops anywhere and loses what was not synced.
//!
//! One seed is one life of a log with several crashes in it, and the same on every run. It drives the writer and the
//! helper in one thread, so a crash lies between, before or in the middle of any of their operations.

mod life;
mod model;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use self::life::Life;

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

/// Lives through one seed. Gives the crashes in it, or what did not hold.
fn live(seed: u64, traced: bool) -> Result<u64, String> {
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
fn survive(first: u64, wanted: u64) -> (u64, u64) {
    let (next, crashes) = (AtomicU64::new(first), AtomicU64::new(0));
    let work = || -> Result<(), (u64, String)> {
        while crashes.load(Ordering::Relaxed) < wanted {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let lived = live(seed, false).map_err(|cause| (seed, cause))?;
            crashes.fetch_add(lived, Ordering::Relaxed);
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
    (next.into_inner() - first, crashes.into_inner())
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
    let (seeds, crashes) = survive(1, wanted);
    assert!(crashes >= wanted, "{crashes} crashes in {seeds} seeds");
}
