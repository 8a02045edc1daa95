//! Whole servers whose disk fails them while clients call: what the clients, the operator and the record see of it.
//!
//! The errors of the system that only a device can give are the business of the log's own tests.

mod directory;
mod disk;
mod files;
mod legacy;
mod load;
mod record;

use std::time::{Duration, Instant};

use serde_json::Value;

use self::load::{Load, Told};
use crate::harness::{Caller, Home, PATIENCE, Server};

/// The log looks at its files four times in a second; a busy machine may take this long to come to it.
const ALARM_MAX: Duration = Duration::from_secs(10);
/// Calls that must have ended, or been refused, before a test goes on.
const ENOUGH: usize = 40;

/// How a fault shows while it lasts.
struct Alarm {
    /// In metrics and in `system.gap`.
    cause: &'static str,
    /// What `/readyz` says, among other things.
    says: &'static str,
    /// What a refused call is told.
    code: &'static str,
    retry_after_s: u64,
    /// How `annals verify --log-only` ends meanwhile.
    verified: i32,
}

/// A server whose segments are as small as they may be.
async fn serve(home: &Home) -> Server {
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "log: { segment_bytes: 1048576, in_flight_bytes_max: 1048576 }\n").unwrap();
    let server = home.serve(&["--sample", "--config", config.to_str().unwrap()]);
    let stored = |body: &Value| (body["store"] == "ok").then_some(());
    Caller::new(&server).get_until("/readyz", stored).await;
    server
}

/// Waits until `/readyz` says `says`, or that all is well. Gives how long that took.
async fn ready_says(caller: &Caller, says: Option<&str>, at_most: Duration) -> Duration {
    let began = Instant::now();
    let mut last = Value::Null;
    let wait = async {
        loop {
            let (status, body) = caller.get("/readyz").await.unwrap();
            let cause = body["log_refuses_because"].as_str();
            let found = match says {
                Some(says) => status == 503 && cause.is_some_and(|cause| cause.contains(says)),
                None => status == 200 && cause.is_none(),
            };
            if found {
                return;
            }
            last = body;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(at_most, wait).await.is_err() {
        panic!("/readyz did not come to say {says:?}; last: {last}");
    }
    began.elapsed()
}

/// One figure of the metrics; 0 when it is not there.
async fn metric(server: &Server, name: &str) -> u64 {
    let text = reqwest::get(&server.metrics_url).await.unwrap().text().await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

async fn outages(server: &Server, cause: &str) -> u64 {
    metric(server, &format!("annals_log_outages_total{{cause=\"{cause}\"}}")).await
}

/// Waits until the server says that it had trouble of this kind.
async fn outage_seen(server: &Server, cause: &str, at_most: Duration) -> Duration {
    let began = Instant::now();
    let wait = async {
        while outages(server, cause).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let seen = tokio::time::timeout(at_most, wait).await;
    seen.unwrap_or_else(|_| panic!("no outage by {cause}:\n{}", server.log_text()));
    began.elapsed()
}

/// While the fault lasts: the alarm is raised, calls are refused, and nothing runs.
async fn refuses(server: &Server, load: &Load, alarm: &Alarm) {
    let caller = Caller::new(server);
    let took = ready_says(&caller, Some(alarm.says), ALARM_MAX).await;
    eprintln!("{}: /readyz said so after {} ms", alarm.cause, took.as_millis());
    load.more_refused(ENOUGH).await;
    assert_eq!(metric(server, "annals_log_failed").await, 1, "{}", server.log_text());
    assert_eq!(outages(server, alarm.cause).await, 1, "{}", server.log_text());
    // What was under way ends, and what is small enough for the last room there is.
    let used_up = async {
        loop {
            let ended = load.ended();
            load.more_refused(ENOUGH).await;
            if load.ended() == ended {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, used_up).await.expect("an end of results");
    // From here on no intent is taken, so no tool runs.
    let recorded = metric(server, "annals_log_appended_records_total").await;
    let ended = load.ended();
    load.more_refused(ENOUGH).await;
    assert_eq!(load.ended(), ended, "a call got a result while the log refused");
    assert_eq!(metric(server, "annals_log_appended_records_total").await, recorded);
    assert_eq!(metric(server, "annals_log_failed").await, 1);
    let (alive, _) = caller.get("/healthz").await.unwrap();
    assert_eq!(alive, 200);
}

/// Somebody who looks at the log meanwhile finds no damage.
fn verifies(home: &Home, alarm: &Alarm) {
    let verified = home.annals(&["verify", "--log-only"]);
    assert_eq!(verified.code, Some(alarm.verified), "{}{}", verified.stdout, verified.stderr);
}

/// A log that refuses does not fill another disk with lines that say so.
fn says_little(server: &Server, told: &[Told]) {
    let (refused, text) = (told.iter().filter(|told| told.is_refused()).count(), server.log_text());
    let lines = text.lines().filter(|line| line.contains("calls are refused")).count();
    // One in ten seconds.
    assert!((1..=1 + refused / 20).contains(&lines), "{lines} lines for {refused} calls:\n{text}");
    assert!(text.lines().count() < 100, "{text}");
}

/// Once the fault is gone: the same process takes calls again.
async fn accepts(server: &Server, load: &Load, alarm: &Alarm) {
    let took = ready_says(&Caller::new(server), None, PATIENCE).await;
    eprintln!("{}: accepted again after {} ms", alarm.cause, took.as_millis());
    load.more_ended(ENOUGH).await;
    assert_eq!(metric(server, "annals_log_failed").await, 0, "{}", server.log_text());
}

/// The refusals named what is wrong and when to come again.
fn refused_with(told: &[Told], alarm: &Alarm) {
    let refused: Vec<&Told> = told.iter().filter(|told| told.is_refused()).collect();
    assert!(refused.len() >= ENOUGH);
    let named = |told: &&&Told| {
        told.code.as_deref() == Some(alarm.code)
            && told.status == 503
            && told.retry_after_s == Some(alarm.retry_after_s)
    };
    let count = refused.iter().filter(named).count();
    assert!(count >= ENOUGH, "{count} of {} were told {}: {:?}", refused.len(), alarm.code, refused.first());
}

/// A fault that lasts until it is mended, from outside and without a restart.
async fn lasts(home: &Home, alarm: &Alarm, strike: impl FnOnce(), mend: impl FnOnce()) {
    let server = serve(home).await;
    let load = Load::start(&server);
    load.more_ended(ENOUGH).await;
    strike();
    is_survived(home, server, load, alarm, mend).await;
}

/// The fault is there, and `load` calls.
async fn is_survived(home: &Home, server: Server, load: Load, alarm: &Alarm, mend: impl FnOnce()) {
    refuses(&server, &load, alarm).await;
    verifies(home, alarm);
    legacy::is_told(&server, alarm).await;
    mend();
    accepts(&server, &load, alarm).await;
    let told = load.stop().await;
    refused_with(&told, alarm);
    says_little(&server, &told);
    record::is_whole(home, server, &told, alarm.cause, true).await;
}
