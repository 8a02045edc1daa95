//! `annals backup` and `annals restore`: the drill under load, and every way in which a backup must be refused.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use annals::app::{ControlClient, RunFile};
use annals::auth::{Created, NewKey};
use annals::backup::Manifest;
use annals::base::{Tasks, sha256_hex};
use annals::config::Database;
use annals::db::{Options, Postgres, Role};
use annals::event::{Decoded, Facts};
use hyper::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Connection, Row};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::db::external::{plain_server, run, url};
use crate::harness::{Caller, Finished, Home, PATIENCE, Server, call_id};
use crate::reading;

const CALLERS: usize = 6;
const ANSWERED_MIN: usize = 60;
const KEYS_MIN: usize = 10;

/// The private Postgres that runs in `home`.
pub(crate) async fn attached(home: &Home) -> Postgres {
    let options =
        Options { data_dir: home.data_dir(), url: None, pg_bin: None, database: Database::default() };
    Postgres::attach(options).await.unwrap().expect("a Postgres that runs")
}

/// Runs `annals verify --json` until no row is pending; each time it must find nothing.
pub(crate) async fn caught_up(home: &Home) -> Value {
    caught_up_on(home, &[]).await
}

/// The same with further arguments.
async fn caught_up_on(home: &Home, args: &[&str]) -> Value {
    let settled = async {
        loop {
            let verified = home.annals(&[&["verify", "--json"], args].concat());
            assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
            let report: Value = serde_json::from_str(&verified.stdout).unwrap();
            if report["rows"]["pending"] == 0 {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("rows that catch up")
}

/// Stops the server of `home`, which must end well.
pub(crate) fn stop(home: &Home, server: Server) {
    let status = server.terminate();
    let log = std::fs::read_to_string(home.data_dir().with_extension("log")).unwrap();
    assert!(status.success(), "{status}: {log}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn back_up(home: &Home, to: &Path) -> Finished {
    home.annals(&["backup", "--to", text(to)])
}

fn restore(home: &Home, from: &Path) -> Finished {
    home.annals(&["restore", "--from", text(from)])
}

fn manifest(backup: &Path) -> Manifest {
    serde_json::from_slice(&std::fs::read(backup.join("manifest.json")).unwrap()).unwrap()
}

/// `annals ARGS` beside the test.
fn spawn(home: &Home, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annals"));
    command.args(args).arg("--data-dir").arg(home.data_dir()).env_remove("DATABASE_URL");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

async fn finished(mut child: Child) -> (Option<i32>, String) {
    let ended = tokio::task::spawn_blocking(move || {
        let mut stderr = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
        (child.wait().unwrap().code(), stderr)
    });
    ended.await.unwrap()
}

/// What changes keys on the server of `home`, once its store is there.
pub(crate) async fn control(home: &Home) -> ControlClient {
    let run = RunFile::read(&home.data_dir().join("run.json")).unwrap().unwrap();
    let control = ControlClient::connect(&run).await.expect("the server's socket");
    let there = async {
        while control.request::<Value>(Method::GET, "/v1/keys", None::<&Value>).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("a store that is there");
    control
}

pub(crate) async fn make_key(control: &ControlClient, name: &str) -> Created {
    let new = NewKey { name: name.into(), roles: vec!["analyst".into()], expires_at: None, no_limit: true };
    control.request(Method::POST, "/v1/keys", Some(&new)).await.unwrap()
}

pub(crate) async fn revoke_key(control: &ControlClient, key_id: Uuid) {
    let path = format!("/v1/keys/{key_id}/revoke");
    control.request::<Value>(Method::POST, &path, None::<&Value>).await.unwrap();
}

/// Calls and key changes without pause, until it is stopped.
struct Load {
    tasks: Tasks,
    stop: CancellationToken,
    answered: Arc<Mutex<Vec<Uuid>>>,
    keys: Arc<AtomicUsize>,
}

impl Load {
    /// Begins, and waits until enough was answered.
    async fn begin(home: &Home, server: &Server) -> Self {
        let (tasks, stop) = (Tasks::new(), CancellationToken::new());
        let (answered, keys) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (count, mut counted) = watch::channel(0);
        for _ in 0..CALLERS {
            let (caller, stop) = (Caller::new(server), stop.clone());
            let (answered, count) = (Arc::clone(&answered), count.clone());
            tasks.spawn("caller", async move {
                while !stop.is_cancelled() {
                    let (_, answer) = caller.call("platform_info", json!({})).await.unwrap();
                    answered.lock().await.push(call_id(&answer).unwrap().parse().unwrap());
                    count.send_modify(|count| *count += 1);
                }
            });
        }
        let (control, stopped, made) = (control(home).await, stop.clone(), Arc::clone(&keys));
        tasks.spawn("key changes", async move {
            let mut before = make_key(&control, "load").await;
            while !stopped.is_cancelled() {
                let next = make_key(&control, "load").await;
                revoke_key(&control, before.key_id).await;
                before = next;
                made.fetch_add(1, Ordering::SeqCst);
                count.send_modify(|_| {});
            }
        });
        let enough =
            counted.wait_for(|count| *count >= ANSWERED_MIN && keys.load(Ordering::SeqCst) >= KEYS_MIN);
        tokio::time::timeout(PATIENCE, enough).await.unwrap().unwrap();
        Self { tasks, stop, answered, keys }
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.join().await;
    }
}

/// One checksum over every row of both tables whose event lies before `end`.
async fn rows_checksum(home: &Home, end: u64) -> (i64, String) {
    let postgres = attached(home).await;
    let mut reader = postgres.connect_options(Role::Reader).connect().await.unwrap();
    let row = sqlx::query(
        "SELECT count(*), md5(string_agg(e::text || p::text, '|' ORDER BY e.position))
         FROM audit_v1.audit_events e JOIN audit_v1.audit_personal p USING (log_id, topic, partition, position)
         WHERE e.position < $1",
    )
    .bind(i64::try_from(end).unwrap())
    .fetch_one(&mut reader)
    .await
    .unwrap();
    reader.close().await.unwrap();
    (row.get(0), row.get(1))
}

/// Every key that an event in `events` made stands in the store, and is revoked there exactly when an event says so.
async fn assert_keys_follow(events: &[Decoded], home: &Home) {
    let postgres = attached(home).await;
    let mut reader = postgres.connect_options(Role::Reader).connect().await.unwrap();
    let rows = sqlx::query("SELECT key_id, revoked_at IS NOT NULL FROM annals.api_keys ORDER BY key_id")
        .fetch_all(&mut reader)
        .await
        .unwrap();
    reader.close().await.unwrap();
    let stored: Vec<(Uuid, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let revoked = |id: Uuid| {
        events.iter().any(|event| matches!(&event.facts, Facts::KeyRevoked(revoked) if revoked.key_id == id))
    };
    let mut told: Vec<(Uuid, bool)> = events
        .iter()
        .filter_map(|event| match &event.facts {
            Facts::KeyCreated(made) => Some((made.key_id, revoked(made.key_id))),
            _ => None,
        })
        .collect();
    told.sort();
    told.dedup();
    assert_eq!(stored, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_restored_whole() {
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&[]);
    let changes = control(&home).await;
    let kept = make_key(&changes, "kept").await;
    let gone = make_key(&changes, "gone").await;
    revoke_key(&changes, gone.key_id).await;
    let load = Load::begin(&home, &server).await;
    let before: Vec<Uuid> = load.answered.lock().await.clone();
    let backup = other.path().join("backup");
    let keys_before = load.keys.load(Ordering::SeqCst);
    let (code, stderr) = finished(spawn(&home, &["backup", "--to", text(&backup)])).await;
    assert_eq!(code, Some(0), "{stderr}");
    let until = async {
        while load.keys.load(Ordering::SeqCst) == keys_before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until).await.expect("keys change again after the backup");
    load.end().await;

    let manifest = manifest(&backup);
    let copied = reading::events_in(&backup.join("data/log"));
    for id in &before {
        let of_call = |event: &&Decoded| match &event.facts {
            Facts::Requested(requested) => requested.call.call_id == *id,
            Facts::Terminal(_, terminal) => terminal.call.call_id == *id,
            _ => false,
        };
        assert_eq!(copied.iter().filter(of_call).count(), 2, "call {id}");
    }
    let restored = restore(&other, &backup);
    assert_eq!(restored.code, Some(0), "{}{}", restored.stdout, restored.stderr);
    assert!(restored.stdout.contains("result     everything holds"), "{}", restored.stdout);

    let again = other.serve(&[]);
    control(&other).await;
    let caller = Caller::new(&again);
    caller.get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    assert_eq!(Caller::with_key(&again, &kept.key).call("platform_info", json!({})).await.unwrap().0, 200);
    assert_eq!(Caller::with_key(&again, &gone.key).call("platform_info", json!({})).await.unwrap().0, 401);
    let report = caught_up(&other).await;
    assert_eq!(report["log_id"], json!(manifest.log_id));
    // What waited in the outbox at that moment is on the log by now, once or twice.
    assert_keys_follow(&reading::events_in(&other.data_dir().join("log")), &other).await;
    caught_up(&home).await;
    let (count, sum) = rows_checksum(&other, manifest.end).await;
    assert_eq!((count, sum), rows_checksum(&home, manifest.end).await);
    assert_eq!(count, i64::try_from(copied.len()).unwrap());

    // The backup is an event on the log that was copied.
    let sha256 = sha256_hex(&std::fs::read(backup.join("manifest.json")).unwrap());
    let taken =
        reading::events_in(&home.data_dir().join("log")).into_iter().find_map(|event| match event.facts {
            Facts::BackupTaken(taken) => Some(taken),
            _ => None,
        });
    let taken = taken.expect("a backup_taken event");
    assert_eq!((taken.log_id, taken.end, taken.manifest_sha256), (manifest.log_id, manifest.end, sha256));
    stop(&other, again);
    stop(&home, server);
}

/// Keeps changes of keys, and so the backup, from going on.
async fn hold_the_outbox(home: &Home) -> PgConnection {
    let mut held = attached(home).await.connect_options(Role::Owner).connect().await.unwrap();
    let lock = "BEGIN; LOCK TABLE annals.outbox IN ROW EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut held).await.unwrap();
    held
}

/// Waits until somebody waits for the lock that `held` keeps away.
async fn until_it_waits(held: &mut PgConnection) {
    let waiting = async {
        loop {
            let waits: bool = sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'annals.outbox'::regclass AND mode = 'ShareLock'
                     AND NOT granted)",
            )
            .fetch_one(&mut *held)
            .await
            .unwrap();
            if waits {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("a backup that waits");
}

/// A config in which a backup waits as long as a test may take.
fn patient(home: &Home) -> PathBuf {
    let path = home.path().join("annals.yaml");
    std::fs::write(&path, "database:\n  backup_lock_wait_ms: 120000\n").unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_backup_is_never_behind_its_rows() {
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&[]);
    let caller = Caller::new(&server);
    control(&home).await;
    let mut held = hold_the_outbox(&home).await;
    let (backup, config) = (other.path().join("backup"), patient(&home));
    let taking = spawn(&home, &["backup", "--to", text(&backup), "--config", text(&config)]);
    until_it_waits(&mut held).await;
    // While it waits for its moment, calls go on and their rows come.
    for _ in 0..5 {
        assert_eq!(caller.call("platform_info", json!({})).await.unwrap().0, 200);
    }
    let applied = |body: &Value| (body["data"].as_array().unwrap().len() == 5).then_some(());
    caller.get_until("/api/v1/admin/audit/events?tool_name=platform_info", applied).await;
    held.close().await.unwrap();
    let (code, stderr) = finished(taking).await;
    assert_eq!(code, Some(0), "{stderr}");
    let restored = restore(&other, &backup);
    assert_eq!(restored.code, Some(0), "{}{}", restored.stdout, restored.stderr);
    let again = other.serve(&[]);
    Caller::new(&again).get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    caught_up(&other).await;
    stop(&other, again);
    stop(&home, server);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_backup_or_restore_is_never_taken_for_a_whole_one() {
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&[]);
    control(&home).await;
    let mut held = hold_the_outbox(&home).await;
    let (backup, config) = (other.path().join("backup"), patient(&home));
    let mut taking = spawn(&home, &["backup", "--to", text(&backup), "--config", text(&config)]);
    until_it_waits(&mut held).await;
    taking.kill().unwrap();
    taking.wait().unwrap();
    held.close().await.unwrap();
    let left: Vec<_> = std::fs::read_dir(&backup).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["incomplete"]);
    let refused = restore(&other, &backup);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("has no manifest.json"), "{}", refused.stderr);
    assert!(!other.data_dir().exists(), "a refused restore makes nothing");
    let again = back_up(&home, &backup);
    assert_eq!(again.code, Some(2));
    assert!(again.stderr.contains("is not empty"), "{}", again.stderr);

    let whole = other.path().join("whole");
    assert_eq!(back_up(&home, &whole).code, Some(0));
    let mut restoring = spawn(&other, &["restore", "--from", text(&whole)]);
    let mark = other.data_dir().join("restore.incomplete");
    let begun = async {
        while !mark.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("a restore that has begun");
    restoring.kill().unwrap();
    restoring.wait().unwrap();
    for command in [
        &["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"][..],
        &["key", "create", "--name", "x", "--role", "admin"],
        &["key", "list"],
        &["verify"],
        &["log", "adopt"],
        &["backup", "--to", text(&other.path().join("none"))],
    ] {
        let refused = other.annals(command);
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains("was interrupted"), "{}", refused.stderr);
    }
    let into_it = restore(&other, &whole);
    assert_eq!(into_it.code, Some(2));
    assert!(into_it.stderr.contains("remove the directory and run"), "{}", into_it.stderr);
    stop(&home, server);
}

/// Files and directories below `dir`.
fn count(dir: &Path) -> usize {
    let below = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    below.map(|path| 1 + if path.is_dir() { count(&path) } else { 0 }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_fails_at_its_very_end_leaves_nothing() {
    let home = Home::with_mounts();
    let server = home.serve(&[]);
    control(&home).await;
    let (whole, disk) = (home.path().join("whole"), home.path().join("disk"));
    let taken = back_up(&home, &whole);
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    std::fs::create_dir(&disk).unwrap();
    // Room for all files but the manifest; the disk itself counts as one.
    let script = format!("mount -t tmpfs -o nr_inodes={} none \"$1\"", count(&whole));
    home.mounts().run(&script, &[&disk]);
    for to in [disk.clone(), disk.join("made")] {
        let failed = back_up(&home, &to);
        assert_eq!(failed.code, Some(3), "{}", failed.stderr);
        assert!(failed.stderr.contains("No space left on device"), "{}", failed.stderr);
        assert!(!failed.stderr.contains("stays behind"), "{}", failed.stderr);
        assert_eq!(count(&home.seen(&disk)), 0, "what it wrote is removed: {}", failed.stderr);
    }
    home.mounts().run("mount -o remount,nr_inodes=4 \"$1\"", &[&disk]);
    let failed = back_up(&home, &disk);
    assert!(failed.stderr.contains("the log cannot be copied: cannot write "), "{}", failed.stderr);
    let script = format!("mount -o remount,nr_inodes={} \"$1\"", count(&whole));
    home.mounts().run(&script, &[&disk]);
    let failed = back_up(&home, &disk);
    let manifest = disk.join("manifest.json.new");
    assert!(failed.stderr.contains(&format!("cannot write {}", manifest.display())), "{}", failed.stderr);
    stop(&home, server);
}

/// Flips a bit in the middle of a file; gives back what was there.
fn flip(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    std::fs::write(path, changed).unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_of_a_backup_is_refused_by_name() {
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&[]);
    control(&home).await;
    assert_eq!(Caller::new(&server).call("platform_info", json!({})).await.unwrap().0, 200);
    stop(&home, server);
    // Without a server, too.
    let backup = other.path().join("backup");
    let taken = back_up(&home, &backup);
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    let mut paths: Vec<PathBuf> =
        manifest(&backup).files.iter().map(|entry| backup.join(&entry.path)).collect();
    paths.push(backup.join("manifest.json"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for directory in [&backup, &backup.join("data"), &backup.join("data/log")] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    for path in &paths {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        let before = flip(path);
        let refused = restore(&other, &backup);
        assert_eq!(refused.code, Some(1), "{}: {}", path.display(), refused.stderr);
        let named = format!("{} is damaged: ", path.display());
        assert!(refused.stderr.contains(&named), "{}: {}", path.display(), refused.stderr);
        std::fs::remove_file(path).unwrap();
        let refused = restore(&other, &backup);
        let says = if path.ends_with("manifest.json") { "no manifest.json" } else { "it is missing" };
        assert!(refused.stderr.contains(says), "{}: {}", path.display(), refused.stderr);
        std::fs::write(path, before).unwrap();
    }
    assert!(!other.data_dir().exists(), "a refused restore makes nothing");
    let restored = restore(&other, &backup);
    assert_eq!(restored.code, Some(0), "{}{}", restored.stdout, restored.stderr);
    let again = other.serve(&[]);
    control(&other).await;
    caught_up(&other).await;
    stop(&other, again);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_not_backed_up_and_its_place_is_named() {
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&[]);
    assert_eq!(Caller::new(&server).call("platform_info", json!({})).await.unwrap().0, 200);
    // Else the projection meets the damage before the backup does, and ends the server.
    control(&home).await;
    caught_up(&home).await;
    let file = home.data_dir().join("log/00000000000000000000.seg");
    let before = flip(&file);
    let backup = other.path().join("backup");
    let refused = back_up(&home, &backup);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let named = format!("{} is corrupt at byte 0 (position 0)", file.canonicalize().unwrap().display());
    assert!(refused.stderr.contains(&named), "{}", refused.stderr);
    assert!(!backup.exists(), "nothing of it stays");
    std::fs::write(&file, before).unwrap();
    assert_eq!(back_up(&home, &backup).code, Some(0));
    stop(&home, server);
    let nothing = Home::new();
    std::fs::create_dir(nothing.data_dir()).unwrap();
    let refused = back_up(&nothing, &other.path().join("none"));
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("there is no log in this directory"), "{}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_users_own_is_restored_into_an_empty_one() {
    let (cluster, mut superuser) = plain_server().await;
    run(&mut superuser, "CREATE ROLE ops LOGIN CREATEROLE PASSWORD 'secret'").await;
    for sql in ["CREATE DATABASE \"it's one\" OWNER ops", "CREATE DATABASE two OWNER ops"] {
        run(&mut superuser, sql).await;
    }
    let (one, two) = (url(&cluster, "ops", "it's%20one"), url(&cluster, "ops", "two"));
    let (home, other) = (Home::new(), Home::new());
    let server = home.serve(&["--database-url", &one]);
    let kept = make_key(&control(&home).await, "kept").await;
    assert_eq!(Caller::with_key(&server, &kept.key).call("platform_info", json!({})).await.unwrap().0, 200);
    caught_up_on(&home, &["--database-url", &one]).await;
    let backup = other.path().join("backup");
    let taken = home.annals(&["backup", "--to", text(&backup), "--database-url", &one]);
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    stop(&home, server);

    let into = |url: &str| other.annals(&["restore", "--from", text(&backup), "--database-url", url]);
    let refused = into(&one);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("already has schemas of Annals"), "{}", refused.stderr);
    assert!(!other.data_dir().exists(), "a refused restore makes nothing");
    let restored = into(&two);
    assert_eq!(restored.code, Some(0), "{}{}", restored.stdout, restored.stderr);
    let again = other.serve(&["--database-url", &two]);
    control(&other).await;
    assert_eq!(Caller::with_key(&again, &kept.key).call("platform_info", json!({})).await.unwrap().0, 200);
    caught_up_on(&other, &["--database-url", &two]).await;
    assert!(!other.data_dir().join("pg").exists());
    stop(&other, again);
    superuser.close().await.unwrap();
    cluster.stop().await;
}
