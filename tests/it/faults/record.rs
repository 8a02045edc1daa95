//! What the log and the rows hold once a fault is over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use annals::event::{Facts, Gap, Kind};
use serde_json::json;
use uuid::Uuid;

use super::load::Told;
use crate::crash::in_the_rows;
use crate::harness::{Caller, Home, PATIENCE, Server, call_id};
use crate::reading;

/// What the log holds of a call.
#[derive(Debug, Default)]
pub(super) struct Logged {
    intents: usize,
    ends: Vec<(Kind, Option<String>)>,
}

impl Logged {
    /// As rows are counted: a refusal has no intent, and counts as one.
    fn counts(&self) -> (usize, usize) {
        let denied = self.ends.iter().filter(|(kind, _)| *kind == Kind::ToolCallDenied).count();
        (self.intents + denied, self.ends.len())
    }
}

/// Where the test finds the log of `home`.
pub(super) fn log_dir(home: &Home) -> PathBuf {
    home.seen(&home.data_dir().join("log"))
}

fn on_the_log(home: &Home) -> (HashMap<Uuid, Logged>, Vec<Gap>) {
    let mut calls: HashMap<Uuid, Logged> = HashMap::new();
    let mut gaps = Vec::new();
    for event in reading::events_in(&log_dir(home)) {
        match event.facts {
            Facts::Requested(requested) => calls.entry(requested.call.call_id).or_default().intents += 1,
            Facts::Terminal(kind, terminal) => {
                let code = terminal.outcome.error.map(|error| error.code);
                calls.entry(terminal.call.call_id).or_default().ends.push((kind, code));
            }
            Facts::Gap(gap) => gaps.push(gap),
            _ => {}
        }
    }
    (calls, gaps)
}

/// Every call that ended has its intent and its end once; one that was refused has no trace of a run.
pub(super) fn each_call_once(calls: &HashMap<Uuid, Logged>, told: &[Told]) {
    for (id, logged) in calls {
        assert_eq!(logged.counts(), (1, 1), "call {id}: (intents, ends) on the log: {logged:?}");
    }
    for told in told {
        let logged = calls.get(&told.id);
        let end = logged.and_then(|logged| logged.ends.first());
        if told.is_refused() {
            let not_run = match end {
                None => logged.is_none(),
                Some((Kind::ToolCallDenied, _)) => told.tool == "no_such_tool",
                Some((kind, code)) => {
                    *kind == Kind::ToolCallFailed && code.as_deref() == Some("log_unavailable")
                }
            };
            assert!(not_run, "{told:?} is on the log as {logged:?}");
        } else {
            let wanted = match told.tool {
                "no_such_tool" => Kind::ToolCallDenied,
                _ if told.is_error => Kind::ToolCallFailed,
                _ => Kind::ToolCallCompleted,
            };
            assert_eq!(end.map(|(kind, _)| *kind), Some(wanted), "{told:?}");
        }
    }
}

/// The log as [`each_call_once`] wants it, and `count` gaps of this cause at first, with the refusals that were told.
fn log_is_whole(home: &Home, told: &[Told], cause: &str, lasted: bool) -> HashMap<Uuid, Logged> {
    let (calls, gaps) = on_the_log(home);
    each_call_once(&calls, told);
    let unrecorded = told.iter().filter(|told| told.is_unrecorded()).count();
    let refused = told.iter().filter(|told| told.is_refused()).count();
    eprintln!(
        "{cause}: {} calls, {refused} refused, {unrecorded} without a recorded outcome; {gaps:?}",
        told.len()
    );
    assert_eq!(gaps.iter().map(|gap| gap.cause.as_str()).collect::<Vec<_>>(), [cause], "{gaps:?}");
    let gap = &gaps[0];
    assert!(gap.began_at < gap.ended_at && (!lasted || gap.refused > 0), "{gap:?}");
    // Each refused call is one refused request for room, unless its intent was under way.
    let under_way = told.iter().filter(|told| told.is_refused() && calls.contains_key(&told.id)).count();
    // One client of an older revision, and a read of the audit that had to be recorded.
    let others_max = if lasted { 2 } else { 0 };
    let by_load = u64::try_from(refused - under_way).unwrap();
    assert!((by_load..=by_load + others_max).contains(&gap.refused), "{by_load} and others: {gap:?}");
    calls
}

/// The rows say the same as the log, the gap among them.
async fn rows_are_whole(home: &Home, server: &Server, calls: &HashMap<Uuid, Logged>, cause: &str) {
    let wait = async {
        loop {
            let rows = in_the_rows(home).await;
            if calls.keys().all(|id| rows.get(id).is_some_and(|(_, ends)| *ends > 0)) {
                return rows;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let rows = tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
        panic!("no rows of every call:\n{}", server.log_text());
    });
    for (id, counts) in &rows {
        assert_eq!(*counts, (1, 1), "call {id}: (intents, ends) in the rows");
        assert!(calls.contains_key(id), "call {id} has rows and no event");
    }
    let path = "/api/v1/admin/audit/events?limit=5&event_kind=system.gap";
    let caller = Caller::new(server);
    let some = |body: &serde_json::Value| body["data"].as_array().filter(|rows| !rows.is_empty()).cloned();
    let gaps = caller.get_until(path, some).await;
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0]["error_code"], cause, "{gaps:?}");
}

fn verified(home: &Home) {
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

/// Everything that was told is there, once, beside one gap; and so it is after a stop and in the next process.
pub(super) async fn is_whole(home: &Home, server: Server, told: &[Told], cause: &str, lasted: bool) {
    let calls = log_is_whole(home, told, cause, lasted);
    rows_are_whole(home, &server, &calls, cause).await;
    verified(home);
    let log = server.data_dir.with_extension("log");
    let status = server.terminate();
    assert!(status.success(), "{status}: {}", std::fs::read_to_string(log).unwrap());
    verified(home);
    goes_on(home, told).await;
}

/// A new process works on it.
pub(super) async fn goes_on(home: &Home, told: &[Told]) {
    let server = super::serve(home).await;
    let (status, answer) = Caller::new(&server).call("platform_info", json!({})).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let id: Uuid = call_id(&answer).unwrap().parse().unwrap();
    let (calls, _) = on_the_log(home);
    assert_eq!(calls[&id].counts(), (1, 1));
    for told in told.iter().filter(|told| told.is_ended()) {
        assert_eq!(calls.get(&told.id).map(Logged::counts), Some((1, 1)), "{told:?}");
    }
    verified(home);
    assert!(server.terminate().success());
}
