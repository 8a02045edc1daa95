//! Rows that need a server under strain: sessions of a connection that are all in use, a key whose calls all run, a store
//! that is away. Each is fired through the whole server, as those of the other table are.

use std::collections::BTreeSet;
use std::time::Duration;

use annals::base::Tasks;
use annals::db::SAMPLE_DATABASE;
use annals::event::{Decoded, Facts, Kind, Transport};
use annals::refusal::{Reason, Recorded};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnection;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{EVENTS, Got, INITIALIZE, Input, Stage, check_answer, check_events, got_of, input};
use crate::backup::attached;
use crate::db::external::run;
use crate::harness::{ADMIN_KEY, Home, PATIENCE};
use crate::mcp::harness::{Ask, initialize, legacy, legacy_call, modern, modern_call};
use crate::stdio::Process;
use crate::tools::caller::superuser;

/// In the select list, where the series is not written to a temporary file first: that is bounded.
const SLOW: &str = "SELECT count(*) FROM (SELECT generate_series(1, 100000000000)) AS slow";

/// What the sample's database has besides. The function says what a server in trouble says; it is not volatile, so the
/// check lets it through.
const TROUBLE: &str = "
    CREATE TABLE closed (n int);
    CREATE ROLE strained LOGIN PASSWORD 'secret';
    CREATE ROLE mighty LOGIN PASSWORD 'secret' CREATEROLE;
    CREATE FUNCTION fails(state text) RETURNS int LANGUAGE plpgsql STABLE AS
        $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = state; END $$;
    GRANT EXECUTE ON FUNCTION fails TO PUBLIC;
    DO $$ BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %I TO PUBLIC', current_database()); END $$;";

/// With personas that the second start does not have.
fn config(home: &Home, gardener: bool) -> String {
    let socket = home.data_dir().join("pg-socket");
    let url = |role: &str| {
        format!("postgres://{role}:secret@localhost:5432/{SAMPLE_DATABASE}?host={}", socket.display())
    };
    let gardener =
        if gardener { "personas:\n  gardener: { roles: [gardener], tools: { allow: ['*'] } }\n" } else { "" };
    let text = format!(
        "limits: {{ calls_in_flight_per_key_max: 3, sessions_per_key_max: 3, calls_per_minute: 1, calls_burst: 1, shutdown_grace_ms: 200 }}\n\
         {gardener}connections:\n  \
           short: {{ kind: postgres, url: '{0}', timeout_ms: 200 }}\n  \
           single: {{ kind: postgres, url: '{0}', connections_max: 1 }}\n  \
           mighty: {{ kind: postgres, url: '{1}' }}\n",
        url("strained"),
        url("mighty"),
    );
    let path = home.path().join("annals.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A call of 2026-07-28 of a statement, under the request id `id`.
fn query(id: &str, connection: &str, sql: &str) -> Ask {
    let ask = modern_call("sql_query", &json!({ "connection": connection, "sql": sql }).to_string());
    let body = ask.body.replace("\"id\":1,", &format!("\"id\":{id},"));
    Ask { body, ..ask }
}

/// The request id of calls that only keep something busy.
const HELD: &str = "\"held\"";

/// The server, and which rows were fired on it.
struct Strained<'h> {
    home: &'h Home,
    stage: Stage,
    tasks: Tasks,
    seen: usize,
    fired: BTreeSet<Reason>,
    fired_over_stdio: BTreeSet<Reason>,
}

impl<'h> Strained<'h> {
    fn new(home: &'h Home, stage: Stage) -> Self {
        let (fired, fired_over_stdio) = (BTreeSet::new(), BTreeSet::new());
        let mut strained = Self { home, stage, tasks: Tasks::new(), seen: 0, fired, fired_over_stdio };
        strained.skip();
        strained
    }

    /// Passes over what is recorded by now.
    fn skip(&mut self) {
        self.seen = self.stage.events().len();
    }

    /// What was recorded since the last row, without the sessions and without the calls that keep something busy.
    fn new_events(&mut self) -> Vec<Decoded> {
        let all = self.stage.events();
        let held: BTreeSet<Uuid> = all
            .iter()
            .filter_map(|event| match &event.facts {
                Facts::Requested(asked) if asked.call.request_id == HELD => Some(asked.call.call_id),
                _ => None,
            })
            .collect();
        let is_held = |event: &Decoded| match &event.facts {
            Facts::Requested(asked) => held.contains(&asked.call.call_id),
            Facts::Terminal(_, ended) => held.contains(&ended.call.call_id),
            Facts::SessionStarted(_) | Facts::SessionEnded(_) => true,
            _ => false,
        };
        let from = std::mem::replace(&mut self.seen, all.len());
        all.into_iter().skip(from).filter(|event| !is_held(event)).collect()
    }

    /// Checks what came back over HTTP and what was recorded.
    fn check(&mut self, reason: Reason, got: &Got) {
        check_answer(reason.row(), got);
        check_events(reason.row(), &self.new_events());
        self.fired.insert(reason);
    }

    async fn http(&mut self, reason: Reason, ask: &Ask) {
        let got = self.stage.got(ask).await;
        self.check(reason, &got);
    }

    /// Fires the row with `lines`, the last of which is refused, on a process of its own.
    async fn stdio(&mut self, reason: Reason, key: &str, lines: &[&str]) {
        let row = reason.row();
        let mut process = Process::start(self.home, key);
        // A process whose key does not get in ends before it takes a message.
        let at_start = row.recorded == Recorded::AuthFailed || reason == Reason::KeysLoading;
        for line in lines.iter().filter(|_| !at_start) {
            process.write(line).await;
        }
        process.close();
        let mut ended = process.end().await;
        if at_start {
            assert_eq!((ended.code, ended.rest.len()), (Some(3), 0), "{}: {}", row.code, ended.stderr);
        } else {
            assert_eq!(ended.code, Some(0), "{}: {}", row.code, ended.stderr);
            let body = ended.rest.pop().unwrap_or_else(|| panic!("{}: no answer", row.code));
            check_answer(row, &Got { status: row.status, body });
        }
        let events = self.new_events();
        // Such a process asks again for a while: each time is a refusal with its event.
        let each = if reason == Reason::KeysLoading { 1 } else { events.len().max(1) };
        assert!(!events.is_empty(), "{}: nothing is recorded", row.code);
        for events in events.chunks(each) {
            check_events(row, events);
        }
        self.fired_over_stdio.insert(reason);
    }

    /// One message over both.
    async fn both(&mut self, reason: Reason, key: &str, ask: Ask) {
        let ask = ask.key(key);
        self.http(reason, &ask).await;
        self.stdio(reason, key, &[&ask.body]).await;
    }

    /// Sends what is answered later.
    fn send(&self, ask: Ask) -> JoinHandle<Got> {
        let (client, url) = (self.stage.client.clone(), self.stage.server.url.clone());
        self.tasks.spawn("a held call", async move {
            got_of(super::request(&client, &url, &ask).send().await.unwrap()).await
        })
    }

    /// Waits until `found` is true of what is recorded.
    async fn until(&self, what: &str, found: impl Fn(&[Decoded]) -> bool) {
        let wait = async {
            while !found(&self.stage.events()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    /// Waits until each call that began has ended, here and on the database's server.
    async fn until_all_ended(&self, watcher: &mut PgConnection) {
        let begun =
            |events: &[Decoded]| events.iter().filter(|event| event.kind == Kind::ToolCallRequested).count();
        let ended = |events: &[Decoded]| {
            let ended = events.iter().filter(|event| match &event.facts {
                Facts::Terminal(kind, _) => *kind != Kind::ToolCallDenied,
                _ => false,
            });
            ended.count()
        };
        self.until("the ends of all calls", |events| begun(events) == ended(events)).await;
        until_running(watcher, 0).await;
    }
}

/// Waits until `expected` statements run.
async fn until_running(watcher: &mut PgConnection, expected: i64) {
    let wait = async {
        while sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'annals sql_query' AND state = 'active' AND query ~ 'FETCH'",
        )
        .fetch_one(&mut *watcher)
        .await
        .unwrap()
            != expected
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("statements that run");
}

/// What Postgres answers, and what a connection is refused for.
async fn statements(strained: &mut Strained<'_>) {
    for (reason, connection, sql) in [
        (Reason::SqlTimeout, "short", SLOW),
        (Reason::SqlPermissionDenied, "sample", "SELECT * FROM closed"),
        (Reason::SqlConflict, "sample", "SELECT fails('40001')"),
        (Reason::SqlReadOnly, "sample", "SELECT fails('25006')"),
        (Reason::SqlServerFailed, "sample", "SELECT fails('XX000')"),
        (Reason::SqlResourcesExhausted, "sample", "SELECT length(repeat('x', 1000000000))"),
        (Reason::ConnectionRoleRefused, "mighty", "SELECT 1"),
    ] {
        strained.both(reason, ADMIN_KEY, query("1", connection, sql)).await;
    }
}

/// Calls that keep a connection, and then all places of their key, busy.
async fn busy(strained: &mut Strained<'_>, watcher: &mut PgConnection) {
    let mut held = vec![strained.send(query(HELD, "single", SLOW).key(ADMIN_KEY))];
    until_running(watcher, 1).await;
    strained.both(Reason::ConnectionBusy, ADMIN_KEY, query("1", "single", "SELECT 1")).await;
    held.extend([0, 1].map(|_| strained.send(query(HELD, "sample", SLOW).key(ADMIN_KEY))));
    until_running(watcher, 3).await;
    strained.both(Reason::TooManyCalls, ADMIN_KEY, modern_call("platform_info", "{}")).await;
    for call in held {
        call.abort();
    }
    strained.until_all_ended(watcher).await;
}

/// Sessions that are all busy, and requests in them.
async fn sessions(strained: &mut Strained<'_>, watcher: &mut PgConnection) {
    let key = strained.stage.keys[BUSY].clone();
    let slow = json!({ "connection": "sample", "sql": SLOW }).to_string();
    let (mut sessions, mut held) = (Vec::new(), Vec::new());
    for id in [HELD, HELD, "1"] {
        let opened = strained.stage.send(&initialize().key(&key)).await;
        let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        held.push(strained.send(legacy_call(&session, id, "sql_query", &slow).key(&key)));
        sessions.push(session);
    }
    until_running(watcher, 3).await;
    strained.skip();
    strained.both(Reason::SessionsExhausted, &key, initialize()).await;
    let again = legacy_call(&sessions[0], HELD, "platform_info", "{}").key(&key);
    strained.http(Reason::RequestIdInFlight, &again).await;
    let cancel = |id: &str| {
        let params = format!(r#"{{"requestId":{id}}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
    };
    // Its intent stands before what was looked at last.
    let own = strained.stage.events().into_iter().find(|event| match &event.facts {
        Facts::Requested(asked) => {
            asked.call.request_id == "1" && asked.call.session_id.as_ref() == Some(&sessions[2])
        }
        _ => false,
    });
    strained.stage.send(&legacy(&sessions[2], &cancel("1")).key(&key)).await;
    let cancelled = held.remove(2).await.unwrap();
    check_answer(Reason::CancelledByCaller.row(), &cancelled);
    let events: Vec<_> = own.into_iter().chain(strained.new_events()).collect();
    check_events(Reason::CancelledByCaller.row(), &events);
    strained.fired.insert(Reason::CancelledByCaller);
    for session in &sessions[..2] {
        strained.stage.send(&legacy(session, &cancel(HELD)).key(&key)).await;
    }
    for call in held {
        call.await.unwrap();
    }
    strained.until_all_ended(watcher).await;
    for session in &sessions {
        let ended = strained.stage.send(&legacy(session, "").method("DELETE").key(&key)).await;
        assert_eq!(ended.status(), 204);
    }
    strained.skip();

    // The same two over stdio, in one process: who cancelled is not answered.
    let slow = json!({ "name": "sql_query", "arguments": { "connection": "sample", "sql": SLOW } });
    let slow = json!({ "jsonrpc": "2.0", "id": "held", "method": "tools/call", "params": slow }).to_string();
    let other = slow.replace("\"held\"", "1");
    let mut process = Process::start(strained.home, ADMIN_KEY);
    for line in [INITIALIZE, &slow] {
        process.write(line).await;
    }
    until_running(watcher, 1).await;
    process.write(&slow).await;
    strained
        .until("the refusal", |events| {
            events.iter().any(|event| match &event.facts {
                Facts::Terminal(Kind::ToolCallDenied, ended) => {
                    ended.call.request_id == HELD && ended.call.transport == Transport::Stdio
                }
                _ => false,
            })
        })
        .await;
    check_events(Reason::RequestIdInFlight.row(), &strained.new_events());
    strained.fired_over_stdio.insert(Reason::RequestIdInFlight);
    process.write(&other).await;
    until_running(watcher, 2).await;
    process.write(&cancel("1")).await;
    until_running(watcher, 1).await;
    process.write(&cancel(HELD)).await;
    process.close();
    let ended = process.end().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let [initialized, refused] = ended.rest.as_slice() else { panic!("{:?}", ended.rest) };
    assert!(initialized["result"].is_object(), "{initialized}");
    check_answer(Reason::RequestIdInFlight.row(), &Got { status: 200, body: refused.clone() });
    strained.until_all_ended(watcher).await;
    check_events(Reason::CancelledByCaller.row(), &strained.new_events());
    strained.fired_over_stdio.insert(Reason::CancelledByCaller);
}

/// In the order in which they are made.
const BUSY: usize = 0;
const HASTY: usize = 1;
const GARDENER: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_a_server_under_strain_fires_its_event() {
    let home = Home::new();
    // Before the keys are there, and without a store.
    let nowhere = ["--sample", "--database-url", "postgres://nobody@127.0.0.1:1/none"];
    let server = home.serve_front(&nowhere, &[]).await;
    let mut strained = Strained::new(&home, Stage::over(server, Vec::new()));
    strained.both(Reason::KeysLoading, "annals_somebody", modern("tools/list", "")).await;
    strained.both(Reason::ConnectionStarting, ADMIN_KEY, query("1", "sample", "SELECT 1")).await;
    strained.http(Reason::StoreUnavailable, &Ask::get(EVENTS).key(ADMIN_KEY)).await;
    let (mut fired, mut over_stdio) = (strained.fired, strained.fired_over_stdio);
    assert!(strained.stage.server.terminate().success());

    let config_path = config(&home, true);
    let server = home.serve(&["--sample", "--config", &config_path]);
    let postgres = attached(&home).await;
    let mut watcher = superuser(&postgres, &home.data_dir()).connect().await.unwrap();
    run(&mut watcher, TROUBLE).await;
    let keys = vec![
        home.key("busy", "analyst", &["--no-limit"]),
        home.key("hasty", "analyst", &[]),
        home.key("gardener", "gardener", &[]),
    ];
    let mut strained = Strained::new(&home, Stage::over(server, keys.clone()));
    statements(&mut strained).await;
    let info = modern_call("platform_info", "{}");
    assert_eq!(strained.stage.got(&info.clone().key(&keys[HASTY])).await.status, 200);
    strained.skip();
    strained.both(Reason::RateLimited, &keys[HASTY], info).await;
    busy(&mut strained, &mut watcher).await;
    strained.skip();
    sessions(&mut strained, &mut watcher).await;
    drop((watcher, postgres));

    // The last of it: a stop that a call outlasts.
    strained.skip();
    let last = strained.send(query("1", "sample", SLOW).key(ADMIN_KEY));
    strained
        .until("the intent", |events| {
            events
                .iter()
                .any(|event| matches!(&event.facts, Facts::Requested(asked) if asked.call.request_id == "1"))
        })
        .await;
    kill_process(strained.stage.server.pid(), Signal::TERM).unwrap();
    let got = last.await.unwrap();
    strained.check(Reason::CancelledByShutdown, &got);
    fired.append(&mut strained.fired);
    over_stdio.append(&mut strained.fired_over_stdio);
    assert!(strained.stage.server.terminate().success());

    // Again, with roles that lead nowhere any more.
    let config_path = config(&home, false);
    let server = home.serve(&["--config", &config_path]);
    let mut strained = Strained::new(&home, Stage::over(server, keys.clone()));
    strained.both(Reason::RolesUnmapped, &keys[GARDENER], modern("tools/list", "")).await;
    fired.append(&mut strained.fired);
    over_stdio.append(&mut strained.fired_over_stdio);

    let due = |transport| {
        let rows = Reason::ALL.iter().copied();
        let rows = rows.filter(|&reason| matches!(input(reason), Input::Strained));
        rows.filter(|reason| reason.row().transports.contains(&transport)).collect::<BTreeSet<_>>()
    };
    assert_eq!(fired, due(Transport::Http));
    let mut missing: BTreeSet<_> = due(Transport::Stdio);
    missing.retain(|reason| !over_stdio.contains(reason));
    // A process that the server's end leaves without an answer says `server_gone`, which has its own test. Of the tools that
    // read the audit, `a_store_that_is_away_is_said_and_never_an_empty_answer` fires the row: stdio takes the same way.
    assert_eq!(missing, BTreeSet::from([Reason::CancelledByShutdown, Reason::StoreUnavailable]));
}
