//! What is too old goes, said first and never past a projection; what is left verifies, and forged cuts are found.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use annals::base::{Clock, SystemClock, Timestamp};
use annals::consumer::{self, StoreState};
use annals::db::{Postgres, Role};
use annals::event::{
    Facts, Kind, LaneClosed, LogCut, Personal, Requested, Retention, Started, Topic, TopicPartition,
};
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Frame, Lanes, Log, LogId, Position, Receipt};
use annals::projection::{ApplyError, AuditProjection, Item, Projection};
use annals::verify::{self, Report};
use futures::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use crate::db::server::{TestServer, options};
use crate::harness::{Caller, Home, PATIENCE};
use crate::projection::stand::{Stand, call, terminal};
use crate::verify::{first, verify};

const DAY_MICROS: i64 = 86_400_000_000;

/// A clock that is as many days behind as the test says.
struct Aged(AtomicI64);

impl Clock for Aged {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_micros(-self.0.load(Ordering::Relaxed) * DAY_MICROS)
    }

    fn monotonic(&self) -> Instant {
        SystemClock.monotonic()
    }
}

/// A process start of long ago, on segments of a few records.
struct Past {
    log: Arc<EmbeddedLog>,
    lanes: Lanes,
    clock: Arc<Aged>,
}

impl Past {
    async fn begin(log_dir: &Path, days: i64) -> Self {
        let options = Options {
            dir: log_dir.to_owned(),
            segment_bytes: 64 * 1024,
            in_flight_records_max: 64,
            in_flight_bytes_max: 32 * 1024,
            reserve_wait: Duration::from_secs(30),
            append_wait: Duration::from_secs(30),
        };
        let log = EmbeddedLog::open(options, Arc::new(SystemClock)).unwrap().0;
        let clock = Arc::new(Aged(AtomicI64::new(days)));
        let lanes =
            Lanes::new(Arc::clone(&log) as Arc<dyn Log>, Arc::clone(&clock) as Arc<dyn Clock>, "default");
        let past = Self { log, lanes, clock };
        let log_id = past.log.id().0;
        past.record(&Facts::Started(Started { version: "0".into(), log_id, command: "serve".into() }), "i")
            .await;
        past
    }

    fn days_ago(&self, days: i64) {
        self.clock.0.store(days, Ordering::Relaxed);
    }

    async fn record(&self, facts: &Facts, key: &str) -> Receipt {
        let personal = Personal { user_name: Some("ann".into()), ..Personal::default() };
        let event = self.lanes.draft().build(self.clock.now(), key, facts, &personal).unwrap();
        self.lanes.record(event).await.unwrap()
    }

    async fn intent(&self, session: &str) -> annals::event::Call {
        let mut call = call(session);
        call.received_at = self.clock.now();
        let deadline = call.received_at.plus_micros(30_000_000);
        self.record(&Facts::Requested(Requested { call: call.clone(), deadline }), session).await;
        call
    }

    /// Whole calls in a few sessions.
    async fn calls(&self, count: u32) {
        for n in 0..count {
            let session = format!("s{}", n % 5);
            let call = self.intent(&session).await;
            self.record(&terminal(&call, Kind::ToolCallCompleted), &session).await;
        }
    }

    /// What is older than that.
    async fn plan(&self, days: i64) -> LogCut {
        let older_than = SystemClock.now().plus_micros(-days * DAY_MICROS);
        self.log.plan_drop(older_than, 64).await.unwrap().expect("something to drop")
    }

    /// Drops it as the server does.
    async fn drop_older(&self, days: i64) -> LogCut {
        let cut = self.plan(days).await;
        self.record(&Facts::Retention(Retention::Log(cut.clone())), "i").await;
        self.log.drop_segments(cut.clone()).await.unwrap();
        cut
    }
}

async fn verify_log(log_dir: &Path) -> Report {
    let options = verify::Options {
        log_dir: log_dir.to_owned(),
        log_only: true,
        postgres: None,
        progress: Box::new(|done, total| assert!(done <= total)),
    };
    verify::run(options).await.unwrap()
}

#[tokio::test]
async fn a_cut_counts_only_when_an_event_says_it() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("log");
    let past = Past::begin(&log_dir, 100).await;
    past.calls(120).await;
    // Calls that are open at the cut, of which one ends behind it.
    let ends = past.intent("s1").await;
    past.intent("s2").await;
    past.days_ago(10);
    past.calls(120).await;
    past.record(&terminal(&ends, Kind::ToolCallCompleted), "s1").await;
    let whole = verify_log(&log_dir).await;
    assert!(whole.is_clean(), "{whole}");

    let cut = past.drop_older(30).await;
    let report = verify_log(&log_dir).await;
    assert!(report.is_clean(), "{report}");
    assert!(report.range.first_position.unwrap() > cut.first);
    let kept = whole.events + 1 - cut.segments.iter().map(|segment| segment.records).sum::<u64>();
    assert_eq!((report.events, report.lanes, report.incarnations), (kept, whole.lanes, 1), "{report}");
    let note = format!("the log starts at position {}", cut.first);
    assert!(report.notes.iter().any(|text| text.starts_with(&note)), "{report}");

    // The same cut without the event: nobody but the one who did it knows of it.
    past.days_ago(0);
    past.calls(60).await;
    let silent = past.plan(5).await;
    past.log.drop_segments(silent.clone()).await.unwrap();
    let report = verify_log(&log_dir).await;
    let found = first(&report);
    assert_eq!((found.0, found.1, report.findings_total), ("retention", silent.first, 1), "{report}");
    assert!(found.2.contains("no event on the log says"), "{report}");

    // An event that says something else about it is none.
    let lie = LogCut { recorded_through: Timestamp::from_micros(1), ..silent.clone() };
    past.record(&Facts::Retention(Retention::Log(lie)), "i").await;
    assert_eq!(first(&verify_log(&log_dir).await).0, "retention");
    past.record(&Facts::Retention(Retention::Log(silent)), "i").await;
    let report = verify_log(&log_dir).await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn a_cut_that_was_said_and_not_made_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("log");
    let past = Past::begin(&log_dir, 100).await;
    past.calls(120).await;
    let cut = past.plan(30).await;
    past.record(&Facts::Retention(Retention::Log(cut.clone())), "i").await;
    let report = verify_log(&log_dir).await;
    assert!(report.is_clean(), "{report}");
    assert!(report.notes.iter().any(|note| note.contains("that did not happen (yet)")), "{report}");
    assert_eq!(past.drop_older(30).await, cut, "the next try says the same again");
    let report = verify_log(&log_dir).await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn lanes_that_ended_before_the_cut_and_were_marked_behind_it_are_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("log");
    let past = Past::begin(&log_dir, 100).await;
    past.calls(10).await;
    let lane_incarnation = past.lanes.incarnation();
    let close = |head| Facts::LaneClosed(LaneClosed { lane_incarnation, head });
    let (own, others): (Vec<_>, Vec<_>) =
        past.lanes.heads().into_iter().partition(|head| head.topic == Topic::System);
    assert_eq!(own.len(), 1);
    for head in others {
        past.record(&close(head), "i").await;
    }
    for head in past.lanes.heads().into_iter().filter(|head| head.topic == Topic::System) {
        past.record(&close(head), "i").await;
    }
    // The next start works for long before it comes to the mark.
    let clock = Arc::clone(&past.clock) as Arc<dyn Clock>;
    let lanes = Lanes::new(Arc::clone(&past.log) as Arc<dyn Log>, clock, "default");
    let next = Past { lanes, log: Arc::clone(&past.log), clock: Arc::clone(&past.clock) };
    next.calls(120).await;
    next.days_ago(10);
    next.calls(1).await;
    next.log.mark_closed(lane_incarnation).await.unwrap();
    next.calls(60).await;
    let cut = next.drop_older(30).await;
    let known = |head: &annals::log::StartHead| head.incarnation == lane_incarnation;
    assert!(next.log.start().heads.iter().any(known), "the cut lies between the ends and the mark");
    let report = verify_log(&log_dir).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.incarnations, report.range.first_position > Some(cut.first)), (1, true), "{report}");
}

/// A stand whose log has old records.
async fn old_stand(days: i64) -> (Stand, Past) {
    let server = TestServer::start().await;
    let past = Past::begin(&server.data_dir.path().join("log"), days).await;
    let (owner, writer) = (server.postgres.pool(Role::Owner), server.postgres.pool(Role::Writer));
    let lanes = Arc::new(crate::projection::stand::lanes(&past.log));
    let log = Arc::clone(&past.log);
    (Stand { server, owner, writer, log, lanes }, past)
}

fn ends(cut: &LogCut) -> Vec<(TopicPartition, Position)> {
    let end = |tail: &annals::event::PartitionTail| {
        (TopicPartition { topic: tail.topic, partition: tail.partition }, Position(tail.position))
    };
    cut.tails.iter().map(end).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_dropped_that_a_projection_has_not_applied() {
    let (stand, past) = old_stand(100).await;
    past.calls(60).await;
    let cut = past.plan(30).await;
    let behind = async |ends: Vec<_>| consumer::behind(&stand.writer, past.log.id(), &ends).await;
    assert_eq!(behind(ends(&cut)).await.unwrap(), ["no projection has a checkpoint yet"]);
    let run = stand.worker("w1", true, |_| {});
    stand.caught_up().await;
    assert_eq!(behind(ends(&cut)).await.unwrap(), Vec::<String>::new());
    run.stop().await;
    past.calls(60).await;
    let cut = past.plan(30).await;
    let waiting = behind(ends(&cut)).await.unwrap();
    assert!(waiting[0].starts_with("projection audit version 1 has applied annals."), "{waiting:?}");
    // Another log's checkpoints say nothing of this one.
    let other = consumer::behind(&stand.writer, annals::log::LogId(uuid::Uuid::nil()), &ends(&cut)).await;
    assert!(other.unwrap().len() >= waiting.len());
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_says_what_the_log_cannot_give_any_more() {
    let (stand, past) = old_stand(100).await;
    past.calls(90).await;
    let open = past.intent("s1").await;
    past.days_ago(10);
    past.calls(90).await;
    past.record(&terminal(&open, Kind::ToolCallCompleted), "s1").await;
    let run = stand.worker("w1", true, |_| {});
    stand.caught_up().await;
    let cut = past.drop_older(30).await;
    stand.caught_up().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let older = cut.segments.iter().map(|segment| segment.records).sum::<u64>();
    assert_eq!(report.rows.unwrap().not_compared, older, "{report}");
    run.stop().await;
    // A worker that comes back finds its checkpoints, those before the start too.
    let mut run = stand.worker("w2", true, |_| {});
    assert_eq!(run.reached(StoreState::Ok).await, "");
    run.stop().await;

    // A forged row among those that cannot be compared is one too many.
    let superuser = stand.superuser().await;
    let sql = format!(
        "CREATE TEMP TABLE forged AS SELECT * FROM audit_v1.audit_events WHERE position < {} LIMIT 1;
         UPDATE forged SET position = position + 1;
         INSERT INTO audit_v1.audit_events SELECT * FROM forged; DROP TABLE forged",
        cut.first
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&superuser).await.unwrap();
    let report = verify(&stand).await;
    let found = first(&report);
    assert_eq!((found.0, report.findings_total), ("row_added", 1), "{report}");
    assert!(found.2.contains("rows of events before the log's start, but the log had"), "{report}");

    // All is lost but the log.
    for sql in [
        "DROP SCHEMA audit_v1 CASCADE",
        "DELETE FROM annals.checkpoints",
        "DELETE FROM annals.lane_heads",
        "DELETE FROM annals.once",
    ] {
        sqlx::query(sql).execute(&stand.owner).await.unwrap();
    }
    let mut run = stand.worker("w3", true, |options| options.projection.loops = 1);
    let said = run.reached(StoreState::Ok).await;
    assert!(said.starts_with(&format!("rows of events recorded up to {}", cut.recorded_through)), "{said}");
    assert!(said.contains(&format!("the log starts at position {}", cut.first)), "{said}");
    stand.caught_up().await;
    assert_eq!(run.metric("annals_events_missing_total"), 0, "what was dropped is not missing");
    assert_eq!(stand.count("SELECT count(*) FROM annals.findings").await, 0);
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows.unwrap().not_compared, 0, "{report}");
    run.stop().await;
    stand.stop().await;
}

/// The audit, whose old months are dropped each time right after they were made, as often as `left` says.
struct Dropping {
    inner: AuditProjection,
    owner: PgPool,
    left: AtomicI64,
}

impl Projection for Dropping {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn version(&self) -> i32 {
        self.inner.version()
    }
    fn topics(&self) -> &'static [Topic] {
        self.inner.topics()
    }
    fn install<'a>(&'a self, owner: &'a PgPool) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        self.inner.install(owner)
    }
    fn prepare<'a>(
        &'a self,
        writer: &'a PgPool,
        recorded: &'a [Timestamp],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            self.inner.prepare(writer, recorded).await?;
            if !recorded.is_empty() && self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
                let before = SystemClock.now().plus_micros(-60 * DAY_MICROS);
                AuditProjection::drop_months(&self.owner, before).await?;
            }
            Ok(())
        })
    }
    fn forget(&self) {
        self.inner.forget();
    }
    fn apply<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        batch: &'a [Item],
    ) -> BoxFuture<'a, Result<(), ApplyError>> {
        self.inner.apply(tx, log, batch)
    }
    fn knows<'a>(
        &'a self,
        tx: &'a mut PgConnection,
        log: LogId,
        frames: &'a [Frame],
    ) -> BoxFuture<'a, Result<Vec<bool>, sqlx::Error>> {
        self.inner.knows(tx, log, frames)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn months_that_are_dropped_while_rows_come_for_them_blame_no_row() {
    let (stand, past) = old_stand(100).await;
    past.calls(30).await;
    let projection =
        Dropping { inner: AuditProjection::new(), owner: stand.owner.clone(), left: AtomicI64::new(6) };
    let run = stand.worker_on(Arc::new(projection), "w1", true, |options| options.projection.loops = 1);
    stand.caught_up().await;
    run.stop().await;
    assert_eq!(stand.count("SELECT count(*) FROM annals.parked").await, 0);
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_a_cut_left_behind_stops_the_worker() {
    let (stand, past) = old_stand(100).await;
    past.calls(5).await;
    let run = stand.worker("w1", true, |_| {});
    stand.caught_up().await;
    run.stop().await;
    past.calls(120).await;
    let cut = past.drop_older(30).await;
    let mut run = stand.worker("w2", true, |_| {});
    let said = run.reached(StoreState::Diverged).await;
    assert!(said.contains(&format!("but the log starts at position {}", cut.first)), "{said}");
    run.stop().await;
    let report = verify(&stand).await;
    assert_eq!(first(&report).0, "checkpoint", "{report}");
    stand.stop().await;
}

/// The value of a metric of a running server.
async fn metric(url: &str, name: &str) -> f64 {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let text = http.get(url).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().unwrap()
}

async fn metric_until(url: &str, name: &str, found: impl Fn(f64) -> bool) {
    let wait = async {
        while !found(metric(url, name).await) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name} never came to that"));
}

fn config(home: &Home, text: &str) -> String {
    std::fs::create_dir_all(home.path()).unwrap();
    let path = home.path().join("annals.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Segments' bases in `home`.
fn bases(home: &Home) -> Vec<u64> {
    let names = std::fs::read_dir(home.data_dir().join("log")).unwrap();
    let base = |name: String| name.strip_suffix(".seg").map(|base| base.parse().unwrap());
    let mut bases: Vec<u64> =
        names.filter_map(|entry| base(entry.unwrap().file_name().into_string().unwrap())).collect();
    bases.sort_unstable();
    bases
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_drops_what_is_too_old_and_everything_still_verifies() {
    let home = Home::new();
    std::fs::create_dir_all(home.data_dir()).unwrap();
    let log_dir = home.data_dir().join("log");
    let past = Past::begin(&log_dir, 200).await;
    past.calls(100).await;
    past.days_ago(120);
    past.calls(100).await;
    past.days_ago(1);
    past.calls(20).await;
    past.log.close().await.unwrap();
    drop(past);
    let before = bases(&home);
    let text = "log: {retention_days: 150, retention_interval_ms: 100}\nprojection: {retention_days: 60}\n";
    let config = config(&home, text);
    let with = ["--config", config.as_str()];

    let server = home.serve(&with);
    let url = server.metrics_url.clone();
    metric_until(&url, "annals_log_dropped_segments_total", |dropped| dropped > 0.0).await;
    metric_until(&url, "annals_retention_dropped_months_total", |dropped| dropped > 0.0).await;
    metric_until(&url, "annals_retention_blocked", |blocked| blocked == 0.0).await;
    let oldest = metric(&url, "annals_log_oldest_record_timestamp_seconds").await;
    let day = 86_400.0;
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit a float")]
    let now = SystemClock.now().as_micros() as f64 / 1e6;
    assert!(oldest > now - 201.0 * day && oldest < now - 119.0 * day, "{oldest}");
    let kept = bases(&home);
    assert!(kept[0] > 0 && before.contains(&kept[0]), "{before:?} {kept:?}");
    let verified = home.annals(&[&["verify"], &with[..]].concat());
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    for expected in
        ["were dropped for their age, as the event at", "rows were dropped for their age", "everything holds"]
    {
        assert!(verified.stdout.contains(expected), "{}", verified.stdout);
    }
    let inspected = home.annals(&["log", "inspect"]);
    assert_eq!(inspected.code, Some(0), "{}", inspected.stderr);
    assert!(inspected.stdout.contains(&format!("start      {}, ", kept[0])), "{}", inspected.stdout);
    let dumped = home.annals(&["log", "dump", "--from", "1"]);
    assert!(dumped.stderr.contains("position 1 was dropped for its age"), "{}", dumped.stderr);
    assert_eq!(Caller::new(&server).call("platform_info", serde_json::json!({})).await.unwrap().0, 200);
    assert!(server.terminate().success());

    // And on with it.
    let server = home.serve(&with);
    assert_eq!(Caller::new(&server).call("platform_info", serde_json::json!({})).await.unwrap().0, 200);
    assert!(server.terminate().success());
    let verified = home.annals(&[&["verify"], &with[..]].concat());
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);

    // Without its anchor the log is what it looks like: cut by somebody.
    std::fs::remove_file(log_dir.join("anchor.json")).unwrap();
    let verified = home.annals(&[&["verify", "--log-only"], &with[..]].concat());
    assert_eq!(verified.code, Some(1), "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stdout.contains("the first segment is missing"), "{}", verified.stdout);
    let refused = home.annals(
        &[&["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"], &with[..]].concat(),
    );
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("the first segment is missing"), "{}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_missing_without_a_word_are_found_and_the_writer_cannot_drop_them() {
    let (stand, past) = old_stand(100).await;
    past.calls(10).await;
    past.days_ago(0);
    past.calls(10).await;
    let run = stand.worker("w1", true, |_| {});
    stand.caught_up().await;
    let denied = sqlx::query("SELECT audit_v1.drop_months(now())").execute(&stand.writer).await.unwrap_err();
    assert_eq!(denied.as_database_error().unwrap().code().as_deref(), Some("42501"));
    let older_than = SystemClock.now().plus_micros(-60 * DAY_MICROS);
    let months = annals::projection::AuditProjection::months_before(&stand.owner, older_than).await.unwrap();
    let [month] = months.as_slice() else { panic!("{months:?}") };
    annals::projection::AuditProjection::drop_months(&stand.owner, month.ends).await.unwrap();
    let report = verify(&stand).await;
    assert_eq!((first(&report).0, report.findings_total), ("row_missing", 2 * 21), "{report}");
    let cut = annals::event::RowsCut {
        projection: "audit".into(),
        version: 1,
        months: vec![month.name.clone()],
        before: month.ends,
    };
    past.record(&Facts::Retention(Retention::Rows(cut)), "i").await;
    stand.caught_up().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows.unwrap().dropped, 2 * 21, "{report}");
    // What is newer than the cut is missed all the same.
    let superuser = stand.superuser().await;
    let newest = "DELETE FROM audit_v1.audit_events WHERE position = (SELECT max(position) FROM audit_v1.audit_events)";
    sqlx::query(newest).execute(&superuser).await.unwrap();
    let report = verify(&stand).await;
    assert_eq!((first(&report).0, report.findings_total), ("row_missing", 1), "{report}");
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nobody_knows_how_far_the_projections_are_nothing_is_dropped() {
    let home = Home::new();
    std::fs::create_dir_all(home.data_dir()).unwrap();
    let past = Past::begin(&home.data_dir().join("log"), 100).await;
    past.calls(100).await;
    past.log.close().await.unwrap();
    drop(past);
    let before = bases(&home);
    let text = "log: {retention_days: 30, retention_interval_ms: 100}\nprojection: {retention_days: 30}\n";
    let config = config(&home, text);
    // Nobody listens there.
    let nowhere = ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    let mut server = home.serve_front(&["--config", &config], &[nowhere]).await;
    metric_until(&server.metrics_url, "annals_retention_blocked", |blocked| blocked == 1.0).await;
    assert_eq!(metric(&server.metrics_url, "annals_log_dropped_segments_total").await, 0.0);
    assert!(bases(&home).starts_with(&before[..before.len() - 1]));
    // The line may be read after the figure.
    let said = async {
        while !server.log_text().contains("the store is not there yet") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, said).await.expect("the cause is not said");
    assert!(server.terminate_within(PATIENCE).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_stay_until_the_projection_is_past_them() {
    let home = Home::new();
    std::fs::create_dir_all(home.data_dir()).unwrap();
    let past = Past::begin(&home.data_dir().join("log"), 100).await;
    past.calls(100).await;
    past.log.close().await.unwrap();
    drop(past);
    let before = bases(&home);
    // The store is there, and its projection cannot get on.
    let postgres = Postgres::start(options(&home.data_dir())).await.unwrap();
    let mut holding = postgres.connect_options(Role::Owner).connect().await.unwrap();
    let hold = "BEGIN; LOCK TABLE annals.checkpoints IN SHARE ROW EXCLUSIVE MODE";
    sqlx::raw_sql(hold).execute(&mut holding).await.unwrap();
    let text = "log: {retention_days: 30, retention_interval_ms: 100}\nprojection: {retention_days: 30}\n";
    let config = config(&home, text);
    let server = home.serve_front(&["--config", &config], &[]).await;
    let told = async {
        while !server.log_text().contains("no projection has a checkpoint yet") {
            assert_eq!(metric(&server.metrics_url, "annals_log_dropped_segments_total").await, 0.0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it says why nothing is dropped");
    assert_eq!(metric(&server.metrics_url, "annals_retention_blocked").await, 1.0);
    assert_eq!(metric(&server.metrics_url, "annals_log_dropped_segments_total").await, 0.0);
    assert!(bases(&home).starts_with(&before[..before.len() - 1]));
    sqlx::raw_sql("COMMIT").execute(&mut holding).await.unwrap();
    holding.close().await.unwrap();
    metric_until(&server.metrics_url, "annals_log_dropped_segments_total", |dropped| dropped > 0.0).await;
    metric_until(&server.metrics_url, "annals_retention_blocked", |blocked| blocked == 0.0).await;
    assert!(server.terminate().success());
    let verified = home.annals(&["verify", "--config", &config]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}
