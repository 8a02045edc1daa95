//! Exactly once in effect: through crashes, takeovers, stalled workers and a Postgres that goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annals::base::Timestamp;
use annals::consumer::StoreState;
use annals::event::{Kind, Topic};
use annals::log::{Frame, Log, LogId};
use annals::projection::{ApplyError, AuditProjection, Item, Projection};
use futures::future::BoxFuture;
use sqlx::{PgConnection, PgPool};
use tokio::sync::watch;

use super::stand::{SOON, Stand, target_of};
use crate::verify::verify;

/// Where a worker stalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the transaction.
    Prepare,
    /// Inside it.
    Apply,
}

/// The audit projection with a gate in it.
struct Gated {
    inner: AuditProjection,
    at: At,
    closed: watch::Sender<bool>,
    reached: watch::Sender<bool>,
}

impl Gated {
    fn new(at: At) -> Arc<Self> {
        Arc::new(Self {
            inner: AuditProjection::new(),
            at,
            closed: watch::Sender::new(true),
            reached: watch::Sender::new(false),
        })
    }

    async fn pass(&self, at: At) {
        if at == self.at {
            self.reached.send_replace(true);
            self.closed.subscribe().wait_for(|closed| !closed).await.unwrap();
        }
    }
}

impl Projection for Gated {
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
            // A batch of nothing only renews leases.
            if !recorded.is_empty() {
                self.pass(At::Prepare).await;
            }
            self.inner.prepare(writer, recorded).await
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
        Box::pin(async move {
            if !batch.is_empty() {
                self.pass(At::Apply).await;
            }
            self.inner.apply(tx, log, batch).await
        })
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
async fn a_worker_that_crashes_anywhere_leaves_each_event_exactly_once() {
    let stand = Arc::new(Stand::start().await);
    let done = Arc::new(AtomicBool::new(false));
    let tasks = annals::base::Tasks::new();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (stand, done) = (Arc::clone(&stand), Arc::clone(&done));
            tasks.spawn("writer", async move {
                let mut calls = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    let kind =
                        if calls.is_multiple_of(3) { Kind::ToolCallFailed } else { Kind::ToolCallCompleted };
                    stand.call(&format!("session-{writer}-{}", calls % 5), Some(kind)).await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for round in 0..30_u64 {
        let run =
            stand.worker(&format!("w{round}"), true, |options| options.projection.batch_records_max = 40);
        // Any moment will do: from before the first statement to the middle of the tenth batch.
        let [random] = annals::base::random_bytes::<1>();
        tokio::time::sleep(Duration::from_millis(5 + u64::from(random) / 3)).await;
        run.crash().await;
    }
    done.store(true, Ordering::Relaxed);
    let mut calls = 0;
    for writer in writers {
        calls += writer.await.unwrap();
    }
    let run = stand.worker("last", true, |_| {});
    stand.caught_up().await;
    run.stop().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.events, report.open), (2 * calls, 0));
    let rows = report.rows.unwrap();
    assert_eq!((rows.compared, rows.pending, rows.parked), (2 * calls, 0, 0));
    assert!(calls > 100, "{calls} calls are too few to prove anything");
    let ended = stand.count("SELECT count(DISTINCT call_id) FROM public.audit_logs").await;
    assert_eq!(u64::try_from(ended), Ok(calls));
    Arc::into_inner(stand).unwrap().stop().await;
}

/// A worker stalls with a batch in its hands, loses its lease to another, and comes back.
async fn stalled(at: At) {
    let stand = Stand::start().await;
    let gated = Gated::new(at);
    let mut reached = gated.reached.subscribe();
    let short = |options: &mut annals::consumer::Options| {
        options.projection.loops = 1;
        options.projection.lease_ms = 400;
        options.projection.lease_renew_ms = 100;
    };
    let mut slow = stand.worker_on(Arc::clone(&gated) as Arc<dyn Projection>, "slow", false, short);
    slow.reached(StoreState::Ok).await;
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    tokio::time::timeout(SOON, reached.wait_for(|reached| *reached)).await.unwrap().unwrap();
    let fast = stand.worker("fast", false, short);
    // The other takes over once the lease is over, and applies the same events.
    stand.caught_up().await;
    assert_eq!(stand.count("SELECT count(*) FROM audit_v1.audit_events").await, 2);
    gated.closed.send_replace(false);
    // The stalled one finds that it lost its lease, and that nothing is free.
    let standing_by =
        slow.status.wait_for(|status| status.detail == "80 partitions are owned by another worker");
    tokio::time::timeout(SOON, standing_by).await.expect("the stalled worker stands by").unwrap();
    stand.call("s1", Some(Kind::ToolCallFailed)).await;
    stand.caught_up().await;
    assert_eq!(slow.metric("annals_projection_applied_events_total"), 0);
    assert_eq!(fast.metric("annals_projection_applied_events_total"), 4);
    fast.stop().await;
    slow.stop().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows.unwrap().compared, 4);
    assert_eq!(stand.count("SELECT count(*) FROM annals.parked").await, 0);
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stalls_before_its_transaction_is_fenced() {
    stalled(At::Prepare).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stalls_inside_its_transaction_is_fenced() {
    stalled(At::Apply).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_in_order_gives_its_leases_back() {
    let stand = Stand::start().await;
    let long = |options: &mut annals::consumer::Options| options.projection.lease_ms = 3_600_000;
    let mut first = stand.worker("first", false, long);
    first.reached(StoreState::Ok).await;
    first.stop().await;
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    let mut second = stand.worker("second", false, long);
    assert_eq!(second.reached(StoreState::Ok).await, "");
    stand.caught_up().await;
    // A third one waits behind the second's lease.
    let mut third = stand.worker("third", false, long);
    assert_eq!(third.reached(StoreState::Ok).await, "40 partitions are owned by another worker");
    third.stop().await;
    second.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_log_is_applied_before_a_worker_ends() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    for session in 0..50 {
        stand.call(&format!("s{session}"), Some(Kind::ToolCallCompleted)).await;
    }
    stand.log.close().await.unwrap();
    tokio::time::timeout(SOON, run.task).await.expect("the worker ends with the log").unwrap();
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows.unwrap().pending, 0);
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_of_another_history_stop_the_worker() {
    let stand = Stand::start().await;
    let run = stand.worker("w1", true, |_| {});
    let (_, receipt) = stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    run.stop().await;
    let position = i64::try_from(receipt.position.0).unwrap();
    let log = stand.log.id();
    let target = target_of(Kind::ToolCallCompleted, "s1");
    let cases = [
        (
            format!("UPDATE annals.checkpoints SET link = sha256('x') WHERE position = {position}"),
            format!(
                "UPDATE annals.checkpoints SET link = '\\x{}' WHERE position = {position}",
                hex::encode(receipt.link)
            ),
            format!("the event of {target} at position {position} is not the one that was applied"),
        ),
        (
            format!("UPDATE annals.checkpoints SET position = {0} WHERE position = {position}", position + 1),
            format!("UPDATE annals.checkpoints SET position = {position} WHERE position = {0}", position + 1),
            format!("{target} was applied up to position {}, which is not in the log", position + 1),
        ),
        (
            format!(
                "UPDATE annals.checkpoints SET position = {0} WHERE position = {position}",
                position + (1 << 40)
            ),
            format!(
                "UPDATE annals.checkpoints SET position = {position} WHERE position = {0}",
                position + (1 << 40)
            ),
            format!("{target} was applied up to position {}, which is not in the log", position + (1 << 40)),
        ),
        (
            format!("UPDATE annals.checkpoints SET log_id = '{}'", uuid::Uuid::from_u128(3)),
            format!("UPDATE annals.checkpoints SET log_id = '{log}'"),
            format!("belongs to log 00000000-0000-0000-0000-000000000003, this is log {log}"),
        ),
    ];
    for (damage, repair, detail) in cases {
        sqlx::raw_sql(sqlx::AssertSqlSafe(damage)).execute(&stand.writer).await.unwrap();
        let mut run = stand.worker("w2", true, |options| options.projection.loops = 1);
        let said = run.reached(StoreState::Diverged).await;
        assert!(said.contains(&detail), "{said}");
        // It went home, and applied nothing.
        tokio::time::timeout(SOON, &mut run.task).await.expect("the worker ends").unwrap();
        assert_eq!(run.status.borrow().state, StoreState::Diverged);
        stand.call("s1", None).await;
        assert_eq!(run.metric("annals_projection_applied_events_total"), 0);
        sqlx::raw_sql(sqlx::AssertSqlSafe(repair)).execute(&stand.writer).await.unwrap();
    }
    let mut run = stand.worker("w3", true, |_| {});
    run.reached(StoreState::Ok).await;
    stand.caught_up().await;
    run.stop().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_goes_away_and_comes_back_costs_nothing() {
    let stand = Stand::start().await;
    let mut run = stand.worker("w1", true, |_| {});
    stand.call("s1", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    stand.server.postgres.clone().stop().await.unwrap();
    stand.call("s2", Some(Kind::ToolCallCompleted)).await;
    run.reached(StoreState::Degraded).await;
    let options = crate::db::server::options(stand.server.data_dir.path());
    let again = annals::db::Postgres::start(options).await.unwrap();
    run.reached(StoreState::Ok).await;
    stand.caught_up().await;
    run.stop().await;
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.rows.unwrap().compared, 4);
    stand.log.close().await.unwrap();
    stand.owner.close().await;
    stand.writer.close().await;
    again.stop().await.unwrap();
}
