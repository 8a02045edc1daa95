//! Floods of bad credentials: exact counts, bounded disk and memory, and everybody else's history intact.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use annals::auth::{Auth, AuthError, FloodLimits, Keys, Presented, Unauthenticated};
use annals::base::{Clock, SystemClock, Tasks};
use annals::config::Config;
use annals::db::Role;
use annals::dispatch::Client;
use annals::event::{AuthFailed, Decoded, Facts, Kind, Personal, Transport};
use annals::log::embedded::{EmbeddedLog, Options, ScannedItem, Scanner};
use annals::log::{Lanes, Log};
use annals::refusal::{Place, Reason, Surface};
use serde_json::json;
use sqlx::Row;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::backup::{attached, caught_up};
use crate::faulty_log::{Fault, FaultyLog};
use crate::harness::{Caller, Home, PATIENCE, Server, call_id};
use crate::reading;

/// How long something may take that must come.
const SOON: Duration = Duration::from_secs(10);

/// A gate on a log, without a server.
struct Gate {
    _dir: tempfile::TempDir,
    log: Arc<FaultyLog>,
    auth: Arc<Auth>,
    tasks: Tasks,
}

fn gate(limits: FloodLimits) -> Gate {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path().join("log"), &Config::default().log);
    let (engine, _) = EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap();
    let log = Arc::new(FaultyLog::new(engine));
    let lanes = Arc::new(Lanes::new(Arc::clone(&log) as Arc<dyn Log>, Arc::new(SystemClock), "default"));
    let keys = Arc::new(Keys::new());
    keys.load([]);
    let personas = Config::default().personas().unwrap();
    let auth = Arc::new(Auth::new(keys, personas, None, lanes).with_flood_limits(limits));
    let tasks = Tasks::new();
    tasks.spawn("counts", {
        let (auth, stop) = (Arc::clone(&auth), tasks.cancel_token().clone());
        async move { auth.record_counts(stop).await }
    });
    Gate { _dir: dir, log, auth, tasks }
}

fn at(route: &str) -> Place<'_> {
    Place { route, surface: Surface::Mcp, transport: Transport::Http }
}

impl Gate {
    /// Knocks from `ip`; the code of the refusal.
    async fn knock(&self, ip: &str, key: Option<&str>) -> &'static str {
        let client =
            Client { ip: Some(ip.into()), user_agent: Some("agent ".repeat(2_000)), ..Client::default() };
        let route = format!("POST /{}", "r".repeat(10_000));
        let api_key = key.map(str::as_bytes);
        let presented = Presented { authorization: None, api_key, place: at(&route), client: &client };
        match self.auth.authenticate(presented).await.unwrap_err() {
            AuthError::Unauthenticated(refusal) | AuthError::Unavailable { refusal, .. } => refusal.code(),
        }
    }

    async fn failures(&self) -> Vec<(AuthFailed, Option<Personal>)> {
        let failures = reading::events(&*self.log).await.into_iter().map(|event| match event.facts {
            Facts::AuthFailed(failed) => (failed, event.personal),
            other => panic!("{other:?}"),
        });
        failures.collect()
    }

    /// Waits until so many refusals stand on the log.
    async fn until_recorded(&self, count: u64) {
        let wait = async {
            while self.failures().await.iter().map(|(failed, _)| failed.count).sum::<u64>() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, wait).await.expect("the counts");
    }
}

fn limits(per_source_per_minute: u32, window: Duration) -> FloodLimits {
    FloodLimits { per_source_per_minute, window, ..FloodLimits::default() }
}

#[tokio::test]
async fn what_is_counted_is_recorded_at_the_end_and_holds_nothing_of_a_person() {
    let gate = gate(limits(2, Duration::from_secs(10)));
    let before = SystemClock.now();
    for n in 0..10 {
        assert_eq!(gate.knock(&format!("192.0.2.{n}"), Some("nobody")).await, "unknown");
    }
    for ip in ["192.0.2.1", "198.51.100.1", "198.51.100.1", "198.51.100.1"] {
        assert_eq!(gate.knock(ip, None).await, "missing");
    }
    assert_eq!(gate.failures().await.len(), 4, "the first two of each network");
    gate.tasks.stop().await;
    let failures = gate.failures().await;
    let (mut told, mut counted) = (Vec::new(), BTreeMap::new());
    for (failed, personal) in failures {
        match failed.window {
            None => {
                assert_eq!((failed.count, failed.route.len()), (1, 128), "clipped");
                let personal = personal.unwrap();
                assert_eq!(personal.user_agent.map(|text| text.len()), Some(256), "clipped");
                told.push(personal.client_ip.unwrap());
            }
            Some(window) => {
                assert!(before <= window.began_at && window.began_at <= window.ended_at);
                assert_eq!((failed.route.as_str(), failed.source.as_str()), ("*", "mcp"));
                let nothing = serde_json::to_string(&Personal::default()).unwrap();
                assert_eq!(personal.map(|personal| serde_json::to_string(&personal).unwrap()), Some(nothing));
                counted.insert(failed.reason, (failed.count, window.sources));
            }
        }
    }
    told.sort();
    assert_eq!(told, ["192.0.2.0", "192.0.2.1", "198.51.100.1", "198.51.100.1"]);
    assert_eq!(counted, BTreeMap::from([("unknown".into(), (8, 1)), ("missing".into(), (2, 2))]));
    assert_eq!(gate.knock("192.0.2.1", None).await, "missing");
    assert_eq!(gate.failures().await.len(), 7, "once the last window is closed nothing is counted");
}

#[tokio::test]
async fn a_window_closes_in_time_and_again() {
    let gate = gate(limits(0, Duration::from_millis(100)));
    for round in 1..=3 {
        gate.knock("192.0.2.1", None).await;
        gate.knock("192.0.2.1", None).await;
        gate.until_recorded(2 * round).await;
    }
    let windows = gate.failures().await;
    assert!(windows.iter().all(|(failed, _)| failed.window.is_some()), "{windows:?}");
    gate.tasks.stop().await;
    assert_eq!(gate.failures().await.len(), windows.len(), "nothing is told twice");
}

#[tokio::test]
async fn while_the_log_refuses_nothing_is_counted_and_what_was_counted_is_kept() {
    let gate = gate(limits(0, Duration::from_millis(50)));
    assert_eq!(gate.knock("192.0.2.1", None).await, "missing");
    gate.log.set(Fault::Refuse);
    assert_eq!(gate.knock("192.0.2.1", None).await, "log_unavailable");
    tokio::time::timeout(SOON, gate.log.refused()).await.unwrap();
    gate.log.set(Fault::None);
    assert_eq!(gate.knock("192.0.2.1", None).await, "missing");
    gate.until_recorded(2).await;
    gate.tasks.stop().await;
    let counts: u64 = gate.failures().await.iter().map(|(failed, _)| failed.count).sum();
    assert_eq!(counts, 2, "the one that was not answered as refused is in no count");
}

#[tokio::test]
async fn a_count_that_may_be_written_is_not_told_again() {
    let gate = gate(limits(0, Duration::from_millis(50)));
    gate.log.set(Fault::LoseAck(Kind::AuthFailed));
    gate.knock("192.0.2.1", None).await;
    gate.until_recorded(1).await;
    gate.log.set(Fault::None);
    gate.tasks.stop().await;
    assert_eq!(gate.failures().await.len(), 1);
}

#[tokio::test]
async fn other_refusals_of_the_unknown_share_the_limits() {
    let gate = gate(limits(1, Duration::from_secs(10)));
    let client = Client { ip: Some("192.0.2.1".into()), ..Client::default() };
    for reason in [Reason::NotJson, Reason::NotJson, Reason::NotJson, Reason::Batch] {
        let refusal = annals::refusal::Refusal::new(reason, "It is none.", "Send one.");
        let refused =
            Unauthenticated { refusal: &refusal, place: at("POST /mcp"), client: &client, key: None };
        gate.auth.refuse_unauthenticated(refused).await.unwrap();
    }
    assert_eq!(gate.knock("192.0.2.1", None).await, "missing");
    gate.tasks.stop().await;
    let seen: BTreeMap<_, _> = reading::events(&*gate.log)
        .await
        .into_iter()
        .map(|event| match event.facts {
            Facts::RequestRefused(facts) => {
                ((facts.reason, facts.window.is_some()), (facts.count, facts.method, facts.status))
            }
            Facts::AuthFailed(facts) => ((facts.reason, facts.window.is_some()), (facts.count, None, None)),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (("not_json".to_owned(), false), (1, None::<String>, Some(400))),
        (("not_json".to_owned(), true), (2, None, Some(400))),
        (("batch".to_owned(), true), (1, None, Some(400))),
        (("missing".to_owned(), true), (1, None, None)),
    ];
    assert_eq!(seen, BTreeMap::from(expected));
}

/// Connections of the flood, each from a network of its own.
const CONNECTIONS: u8 = 8;
const WINDOW_MS: u64 = 1_000;
/// The most bytes of one event of a refusal, with what the log adds to it.
const EVENT_BYTES_MAX: u64 = 2 * 1024;
/// What the server may come to need in a flood beyond what its first thousand took.
const GROWTH_KIB_MAX: u64 = 32 * 1024;

/// Bad logins: the short form's, or those of the long form.
fn logins() -> usize {
    if std::env::var_os("ANNALS_TEST_LONG").is_some() { 200_000 } else { 20_000 }
}

/// The ways to be refused: what is sent, and under which source and reason it must be counted.
fn bad_logins() -> [(String, (&'static str, &'static str)); 6] {
    let post = |headers: &str| {
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n{headers}\r\n")
    };
    let get = |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    let long = "x".repeat(10_000);
    let events = "/api/v1/admin/audit/events";
    [
        (post(""), ("mcp", "missing")),
        (post(&format!("authorization: Bearer {long}\r\n")), ("mcp", "malformed")),
        (post("authorization: Bearer guessed\r\n"), ("mcp", "unknown")),
        (post(&format!("x-api-key: {}\r\nuser-agent: {long}\r\n", "k".repeat(500))), ("mcp", "unknown")),
        (get(&format!("{events}?user_id={long}"), "x-api-key: guessed\r\n"), ("rest", "unknown")),
        (get(events, ""), ("rest", "missing")),
    ]
}

async fn connect(network: u8, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, network, 1), 0))).unwrap();
    socket.connect(server).await.unwrap()
}

/// Sends `request` and gives the status of the answer.
async fn ask(stream: &mut TcpStream, request: &str) -> u16 {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.unwrap().parse().unwrap() {
                return head.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the server hung up");
    }
}

/// `count` bad logins over all connections; each is answered with 401. Adds to `sent`.
async fn flood(address: SocketAddr, count: usize, sent: &mut BTreeMap<(String, String), u64>) {
    flood_answered(401, address, count, sent).await;
}

async fn flood_answered(
    status: u16,
    address: SocketAddr,
    count: usize,
    sent: &mut BTreeMap<(String, String), u64>,
) {
    let tasks = Tasks::new();
    let clients = (0..CONNECTIONS).map(|number| {
        tasks.spawn("flood", async move {
            let (mut stream, requests) = (connect(number, address).await, bad_logins());
            let mut sent = BTreeMap::new();
            for n in (usize::from(number)..count).step_by(usize::from(CONNECTIONS)) {
                let (request, counted) = &requests[(n / usize::from(CONNECTIONS)) % requests.len()];
                assert_eq!(ask(&mut stream, request).await, status);
                *sent.entry(*counted).or_insert(0) += 1;
            }
            sent
        })
    });
    for client in clients.collect::<Vec<_>>() {
        for ((source, reason), count) in client.await.unwrap() {
            *sent.entry((source.to_owned(), reason.to_owned())).or_default() += count;
        }
    }
}

fn resident_kib(server: &Server) -> u64 {
    let status = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Makes calls until `enough`; the ids of the answered ones.
async fn genuine_calls(caller: Caller, enough: CancellationToken) -> Vec<uuid::Uuid> {
    let mut answered = Vec::new();
    while !enough.is_cancelled() {
        let (status, answer) = caller.call("platform_info", json!({ "purpose": "as usual" })).await.unwrap();
        assert_eq!((status, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
        answered.push(call_id(&answer).unwrap().parse().unwrap());
    }
    answered
}

/// What the files of a log hold of refused logins.
#[derive(Debug, Default)]
struct OnTheLog {
    events: u64,
    bytes: u64,
    counts: BTreeMap<(String, String), u64>,
    alone_from: Vec<String>,
    /// One comes behind the statement that the process stops.
    late: bool,
}

fn on_the_log(home: &Home) -> OnTheLog {
    let mut scanner = Scanner::open(&home.data_dir().join("log")).unwrap();
    let (mut found, mut stopping) = (OnTheLog::default(), false);
    while let Some(scanned) = scanner.next().unwrap() {
        let ScannedItem::Event(stored) = scanned.item else { continue };
        let event = Decoded::read(stored.frame.target.topic, &stored.frame.body).unwrap();
        stopping |= event.kind == Kind::SystemStopping;
        let Facts::AuthFailed(failed) = event.facts else { continue };
        found.events += 1;
        found.bytes += stored.frame.body.len() as u64 + 183;
        found.late |= stopping;
        if failed.window.is_none() {
            found.alone_from.extend(event.personal.unwrap().client_ip);
        }
        *found.counts.entry((failed.source, failed.reason)).or_default() += failed.count;
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_a_log_that_cannot_write_is_refused_and_told_by_its_gap() {
    let home = Home::new();
    let (log, away) = (home.data_dir().join("log"), home.path().join("away"));
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut sent = BTreeMap::new();
    flood(address, 480, &mut sent).await;
    std::fs::rename(&log, &away).unwrap();
    caller.get_until_status("/readyz", 503).await;
    flood_answered(503, address, 480, &mut BTreeMap::new()).await;
    std::fs::rename(&away, &log).unwrap();
    caller.get_until_status("/readyz", 200).await;
    flood(address, 48, &mut sent).await;
    let lines = server.log_text().lines().filter(|line| line.contains("could not be recorded")).count();
    assert!((1..=4).contains(&lines), "{lines} lines:\n{}", server.log_text());
    assert!(server.terminate().success());
    assert_eq!(on_the_log(&home).counts, sent, "whoever was answered with 503 is in no count");
    let gaps = reading::events_in(&log).into_iter().filter_map(|event| match event.facts {
        Facts::Gap(gap) => Some(gap.refused),
        _ => None,
    });
    let gaps: Vec<u64> = gaps.collect();
    // The count of a window that was open may have been refused too, and tried again.
    assert!(gaps.len() == 1 && (480..520).contains(&gaps[0]), "{gaps:?}");
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_loses_at_most_the_open_window_of_a_flood() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits: {refusals_per_source_per_minute: 0, refusal_window_ms: 200}\n").unwrap();
    let server = home.serve(&["--config", config.to_str().unwrap()]);
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let (mut closed, mut open) = (BTreeMap::new(), BTreeMap::new());
    flood(address, 480, &mut closed).await;
    let wait = async {
        while on_the_log(&home).counts != closed {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the counts of closed windows");
    flood(address, 48, &mut open).await;
    server.kill();
    let server = home.serve(&[]);
    assert!(server.terminate().success());
    let counts = on_the_log(&home).counts;
    for (what, count) in closed {
        let at_most = count + open.get(&what).copied().unwrap_or(0);
        assert!(
            (count..=at_most).contains(&counts[&what]),
            "{what:?}: {} of {count} to {at_most}",
            counts[&what]
        );
    }
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

async fn in_the_rows(home: &Home) -> BTreeMap<(String, String), u64> {
    let rows = sqlx::query(
        "SELECT source, error_code, sum(occurrences)::int8 AS count FROM public.audit_events
         WHERE event_kind = 'auth.failed' GROUP BY 1, 2",
    )
    .fetch_all(&attached(home).await.pool(Role::Reader))
    .await
    .unwrap();
    rows.iter()
        .map(|row| ((row.get(0), row.get(1)), u64::try_from(row.get::<i64, _>("count")).unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_bad_logins_is_counted_exactly_and_costs_bounded_disk_and_memory() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, format!("limits: {{refusal_window_ms: {WINDOW_MS}}}\n")).unwrap();
    let server = home.serve(&["--config", config.to_str().unwrap()]);
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let (tasks, enough) = (Tasks::new(), CancellationToken::new());
    let genuine = tasks.spawn("calls", genuine_calls(Caller::new(&server), enough.clone()));

    let (clock, mut sent) = (SystemClock, BTreeMap::new());
    let begun = clock.monotonic();
    flood(address, 1_000, &mut sent).await;
    let resident = resident_kib(&server);
    flood(address, logins() - 2_000, &mut sent).await;
    // Somebody else mistypes a key amid it.
    let mut elsewhere = connect(200, address).await;
    assert_eq!(ask(&mut elsewhere, &bad_logins()[2].0).await, 401);
    *sent.get_mut(&("mcp".into(), "unknown".into())).unwrap() += 1;
    flood(address, 999, &mut sent).await;
    let growth = resident_kib(&server).saturating_sub(resident);
    assert!(growth <= GROWTH_KIB_MAX, "the server grew by {growth} KiB");
    enough.cancel();
    let calls = genuine.await.unwrap();
    assert!(calls.len() > 10, "{} calls during the flood", calls.len());
    // A window is still open.
    assert!(server.terminate().success());
    let took = clock.monotonic().saturating_duration_since(begun);

    assert_eq!(sent.values().sum::<u64>(), logins() as u64);
    let logged = on_the_log(&home);
    assert_eq!(logged.counts, sent, "on the log");
    assert!(!logged.late, "an event behind system.stopping");
    assert!(logged.alone_from.contains(&"127.0.200.1".to_owned()), "{:?}", logged.alone_from);
    let limits = annals::config::Limits::default();
    let (minutes, windows) = (took.as_secs() / 60 + 1, took.as_secs() * 1_000 / WINDOW_MS + 2);
    let most = u64::from(limits.refusals_per_minute) * minutes + sent.len() as u64 * windows;
    assert!(logged.events <= most, "{} events where at most {most} may be", logged.events);
    assert!(logged.bytes <= most * EVENT_BYTES_MAX, "{} bytes in {} events", logged.bytes, logged.events);

    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    let server = home.serve(&[]);
    tokio::time::timeout(PATIENCE, caught_up(&home)).await.unwrap();
    assert_eq!(in_the_rows(&home).await, sent, "in the rows");
    let rows = crate::crash::in_the_rows(&home).await;
    for id in &calls {
        assert_eq!(rows.get(id), Some(&(1, 1)), "call {id}: (requested, terminal) in the rows");
    }
    assert!(server.terminate().success());
}
