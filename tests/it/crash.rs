//! kill -9 of the whole server under load, again and again on one data directory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annals::base::Tasks;
use annals::config::Database;
use annals::db::{Options, Postgres, Role};
use annals::event::{Facts, Kind};
use serde_json::json;
use sqlx::Row;
use tokio::sync::{Mutex, watch};
use uuid::Uuid;

use crate::harness::{Caller, Home, PATIENCE, Server, call_id};
use crate::reading;

const CLIENTS: usize = 16;
const ANSWERED_MIN: usize = 100;

/// Rounds: the short form's, or those of the long form.
fn rounds() -> usize {
    if std::env::var_os("ANNALS_TEST_LONG").is_some() { 200 } else { 20 }
}

/// What the clients of one round know.
#[derive(Default)]
struct Round {
    answered: Mutex<Vec<Uuid>>,
    in_flight: AtomicUsize,
}

async fn client(caller: Caller, number: usize, round: Arc<Round>, count: watch::Sender<usize>) {
    for n in 0.. {
        let (tool, arguments) = match (number + n) % 3 {
            0 => ("platform_info", json!({ "purpose": format!("client {number} call {n}") })),
            1 => ("sql_query", json!({ "sql": "SELECT count(*) FROM customers", "purpose": "crash test" })),
            _ => ("no_such_tool", json!({})),
        };
        round.in_flight.fetch_add(1, Ordering::SeqCst);
        // A call without an answer, or with half of one, stays counted as in flight: the server was killed.
        let Ok((status, answer)) = caller.call(tool, arguments).await else { return };
        round.in_flight.fetch_sub(1, Ordering::SeqCst);
        let id = call_id(&answer).unwrap_or_else(|| panic!("status {status}: {answer}"));
        round.answered.lock().await.push(id.parse().unwrap());
        count.send_modify(|count| *count += 1);
    }
}

/// Load until enough was answered, then SIGKILL amid it. Returns the ids of the answered calls.
async fn round(server: Server) -> Vec<Uuid> {
    let tasks = Tasks::new();
    let round = Arc::new(Round::default());
    let (count, mut answered) = watch::channel(0);
    let caller = Caller::new(&server);
    for number in 0..CLIENTS {
        tasks.spawn("client", client(caller.clone(), number, Arc::clone(&round), count.clone()));
    }
    tokio::time::timeout(PATIENCE, answered.wait_for(|count| *count >= ANSWERED_MIN)).await.unwrap().unwrap();
    server.kill();
    tasks.join().await;
    assert!(round.in_flight.load(Ordering::SeqCst) > 0, "no call was in flight at the kill");
    let answered = std::mem::take(&mut *round.answered.lock().await);
    assert!(answered.len() >= ANSWERED_MIN);
    answered
}

/// Requested and terminal events of each call on the log.
fn on_the_log(home: &Home) -> HashMap<Uuid, (usize, usize)> {
    let mut calls: HashMap<Uuid, (usize, usize)> = HashMap::new();
    for event in reading::events_in(&home.data_dir().join("log")) {
        match event.facts {
            Facts::Requested(requested) => calls.entry(requested.call.call_id).or_default().0 += 1,
            Facts::Terminal(kind, terminal) => {
                let entry = calls.entry(terminal.call.call_id).or_default();
                entry.1 += 1;
                if kind == Kind::ToolCallDenied {
                    entry.0 += 1; // A refusal has no intent.
                }
            }
            _ => {}
        }
    }
    calls
}

/// Requested and terminal events of each call in the rows.
pub(crate) async fn in_the_rows(home: &Home) -> HashMap<Uuid, (usize, usize)> {
    let options =
        Options { data_dir: home.data_dir(), url: None, pg_bin: None, database: Database::default() };
    let postgres = Postgres::attach(options).await.unwrap().expect("Postgres runs beside the server");
    let pool = postgres.pool(Role::Reader);
    let rows = sqlx::query("SELECT call_id, event_kind FROM public.audit_events WHERE call_id IS NOT NULL")
        .fetch_all(&pool)
        .await
        .unwrap();
    let mut calls: HashMap<Uuid, (usize, usize)> = HashMap::new();
    for row in rows {
        let entry = calls.entry(row.get("call_id")).or_default();
        match row.get::<String, _>("event_kind").as_str() {
            "tool_call.requested" => entry.0 += 1,
            "tool_call.denied" => {
                entry.0 += 1;
                entry.1 += 1;
            }
            _ => entry.1 += 1,
        }
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answered_call_survives_kill_9_exactly_once() {
    let home = Home::new();
    let mut answered: BTreeMap<Uuid, usize> = BTreeMap::new();
    for number in 0..rounds() {
        for id in round(home.serve(&["--sample"])).await {
            assert_eq!(answered.insert(id, number), None, "a call id came twice");
        }
        let verified = home.annals(&["verify", "--log-only"]);
        assert_eq!(verified.code, Some(0), "round {number}: {}{}", verified.stdout, verified.stderr);
    }
    let server = home.serve(&["--sample"]);
    let caller = Caller::new(&server);
    caller.get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    // This read is recorded, and rows follow in order: once its event is there, each lane's earlier ones may still
    // be on their way, so wait for what the rows must hold.
    let logged = on_the_log(&home);
    for (id, number) in &answered {
        assert_eq!(
            logged.get(id),
            Some(&(1, 1)),
            "call {id} of round {number}: (requested, terminal) on the log"
        );
    }
    let wait = async {
        loop {
            let rows = in_the_rows(&home).await;
            if answered.keys().all(|id| rows.contains_key(id)) {
                return rows;
            }
        }
    };
    let rows = tokio::time::timeout(PATIENCE, wait).await.expect("rows of every answered call");
    for (id, number) in &answered {
        assert_eq!(
            rows.get(id),
            Some(&(1, 1)),
            "call {id} of round {number}: (requested, terminal) in the rows"
        );
    }
    let verified = home.annals(&["verify", "--json"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    assert!(server.terminate().success());
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}
