//! What the projection's tests stand on: a real log, a real Postgres, and events made by real lanes or by hand.

use std::sync::Arc;
use std::time::Duration;

use annals::base::{Category, Clock, SystemClock, Tasks, Timestamp, sha256, sha256_hex, uuid_v7};
use annals::consumer::{Metrics, Options, Pools, StoreState, StoreStatus, Worker};
use annals::db::Role;
use annals::event::{
    ArgumentsLevel, AuthMethod, Call, Event, Facts, Failure, Kind, Link, LinkInput, Outcome, Personal,
    Requested, Terminal, TopicPartition, Transport, ZERO_LINK, link, partition_of,
};
use annals::log::embedded::{self, EmbeddedLog};
use annals::log::{Frame, Lanes, Log, Position, Receipt};
use annals::projection::{AuditProjection, Projection};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use serde_json::value::RawValue;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::db::server::TestServer;

/// How long something may take that must come.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) struct Stand {
    pub(crate) server: TestServer,
    pub(crate) owner: PgPool,
    pub(crate) writer: PgPool,
    pub(crate) log: Arc<EmbeddedLog>,
    pub(crate) lanes: Arc<Lanes>,
}

impl Stand {
    pub(crate) async fn start() -> Self {
        let server = TestServer::start().await;
        let owner = server.postgres.pool(Role::Owner);
        let writer = server.postgres.pool(Role::Writer);
        let log = open_log(&server.data_dir.path().join("log"));
        let lanes = Arc::new(lanes(&log));
        Self { server, owner, writer, log, lanes }
    }

    /// A superuser's pool: what a forger could use.
    pub(crate) async fn superuser(&self) -> PgPool {
        let password = std::fs::read_to_string(self.server.data_dir.path().join("keys/postgres")).unwrap();
        let options = self.server.postgres.connect_options(Role::Owner);
        PgPoolOptions::new()
            .connect_with(options.username("postgres").password(password.trim()))
            .await
            .unwrap()
    }

    pub(crate) fn worker(&self, owner: &str, sole_owner: bool, change: impl FnOnce(&mut Options)) -> Run {
        self.worker_on(Arc::new(AuditProjection::new()), owner, sole_owner, change)
    }

    pub(crate) fn worker_on(
        &self,
        projection: Arc<dyn Projection>,
        owner: &str,
        sole_owner: bool,
        change: impl FnOnce(&mut Options),
    ) -> Run {
        let mut options = Options {
            projection: annals::config::Projection::default(),
            owner: owner.to_owned(),
            sole_owner,
        };
        change(&mut options);
        let mut registry = Registry::default();
        let worker = Worker::new(
            options,
            Arc::clone(&self.log) as Arc<dyn Log>,
            Pools { owner: self.owner.clone(), writer: self.writer.clone() },
            projection,
            Arc::new(SystemClock),
            Metrics::register(&mut registry),
        );
        let status = worker.status();
        let tasks = Tasks::new();
        let task = tasks.clone().spawn("worker", {
            let tasks = tasks.clone();
            async move { worker.run(&tasks).await }
        });
        Run { tasks, task, status, registry }
    }

    /// Waits until every event now on the log is applied.
    pub(crate) async fn caught_up(&self) {
        let all = async {
            loop {
                if self.behind().await == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(SOON, all).await.is_err() {
            let sessions: Vec<String> = sqlx::query_scalar(
                "SELECT concat_ws(' ', state, wait_event_type, wait_event, now() - xact_start, left(query, 80))
                 FROM pg_stat_activity WHERE usename LIKE 'annals%'",
            )
            .fetch_all(&self.superuser().await)
            .await
            .unwrap();
            panic!("{} events are not applied; Postgres does: {sessions:#?}", self.behind().await);
        }
    }

    async fn behind(&self) -> u64 {
        let rows: Vec<(String, i32, Option<i64>)> =
            sqlx::query_as("SELECT topic, partition, position FROM annals.checkpoints")
                .fetch_all(&self.writer)
                .await
                .unwrap();
        let mut behind = 0;
        for target in TopicPartition::all() {
            let after = rows
                .iter()
                .find(|row| row.0 == target.topic.name() && u32::try_from(row.1) == Ok(target.partition))
                .and_then(|row| row.2)
                .map(|position| Position(position.try_into().unwrap()));
            behind += self.log.count_after(target, after).await.unwrap();
        }
        behind
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.owner).await.unwrap()
    }

    pub(crate) async fn record(&self, facts: &Facts, key: &str, personal: &Personal) -> Receipt {
        self.lanes.record(self.event(facts, key, personal)).await.unwrap()
    }

    pub(crate) fn event(&self, facts: &Facts, key: &str, personal: &Personal) -> Event {
        self.lanes.draft().build(self.lanes.clock().now(), key, facts, personal).unwrap()
    }

    /// Records a whole call: its intent, and its end when `kind` says how.
    pub(crate) async fn call(&self, session: &str, kind: Option<Kind>) -> (Call, Receipt) {
        let call = call(session);
        let personal = Personal {
            user_name: Some("ann".into()),
            purpose: Some("to count".into()),
            arguments: Some(RawValue::from_string(r#"{"sql":"SELECT 1","n":[1,2.50]}"#.into()).unwrap()),
            ..Personal::default()
        };
        let deadline = call.received_at.plus_micros(30_000_000);
        let requested = Facts::Requested(Requested { call: call.clone(), deadline });
        let mut receipt = self.record(&requested, session, &personal).await;
        if let Some(kind) = kind {
            receipt = self.record(&terminal(&call, kind), session, &personal).await;
        }
        (call, receipt)
    }

    pub(crate) async fn stop(self) {
        self.log.close().await.unwrap();
        self.owner.close().await;
        self.writer.close().await;
        self.server.stop().await;
    }
}

pub(crate) fn open_log(dir: &std::path::Path) -> Arc<EmbeddedLog> {
    let config = annals::config::Log { segment_bytes: 4 * 1024 * 1024, ..annals::config::Log::default() };
    let options = embedded::Options::new(dir.to_owned(), &config);
    EmbeddedLog::open(options, Arc::new(SystemClock)).expect("the log opens").0
}

pub(crate) fn lanes(log: &Arc<EmbeddedLog>) -> Lanes {
    Lanes::new(Arc::clone(log) as Arc<dyn Log>, Arc::new(SystemClock), "default")
}

pub(crate) fn call(session: &str) -> Call {
    let now = SystemClock.now();
    Call {
        call_id: uuid_v7(now),
        received_at: now,
        subject_id: "sub-1".into(),
        auth_method: AuthMethod::ApiKey,
        key_id: Some(Uuid::from_u128(5)),
        persona: "analyst".into(),
        request_id: "17".into(),
        session_id: Some(session.to_owned()),
        transport: Transport::Http,
        protocol_version: "2026-07-28".into(),
        source: "mcp".into(),
        tool_name: "sql_query".into(),
        toolkit_kind: Some("sql".into()),
        connection: Some("sample".into()),
        definition_sha256: Some(sha256_hex(b"definition")),
        trace_id: None,
        arguments_level: ArgumentsLevel::Arguments,
        arguments_hmac: Some(sha256_hex(b"arguments")),
        digest_key_id: "00".into(),
        redactions: 0,
        arguments_bytes: 31,
    }
}

pub(crate) fn terminal(call: &Call, kind: Kind) -> Facts {
    let completed = kind == Kind::ToolCallCompleted;
    let outcome = Outcome {
        duration_ms: 12,
        response_bytes: 345,
        response_chars: 300,
        content_blocks: 1,
        result_hmac: completed.then(|| sha256_hex(b"result")),
        effect: None,
        error: (!completed).then(|| Failure { category: Category::Upstream, code: "down".into() }),
    };
    Facts::Terminal(kind, Terminal { call: call.clone(), authorized: true, outcome })
}

/// In a body, stands for the process start of the lane by hand that takes it.
pub(crate) const OF_ITS_LANE: Uuid = Uuid::from_u128(9);

/// A lane made by hand, to make what real lanes do not.
pub(crate) struct Forged {
    pub(crate) target: TopicPartition,
    pub(crate) incarnation: Uuid,
    pub(crate) seq: u64,
    pub(crate) link: Link,
}

impl Forged {
    pub(crate) fn new(target: TopicPartition) -> Self {
        Self { target, incarnation: Uuid::new_v4(), seq: 0, link: ZERO_LINK }
    }

    /// The next frame of the lane, with a proper link.
    pub(crate) fn next(&mut self, body: impl Into<Bytes>) -> Frame {
        self.next_at(SystemClock.now(), body)
    }

    /// As `next`, recorded at a time of the test's choice.
    pub(crate) fn next_at(&mut self, recorded_at: Timestamp, body: impl Into<Bytes>) -> Frame {
        let mut body = body.into();
        if let Ok(text) = std::str::from_utf8(&body)
            && text.contains(&OF_ITS_LANE.to_string())
        {
            body = text.replace(&OF_ITS_LANE.to_string(), &self.incarnation.to_string()).into();
        }
        let content = sha256(&body);
        let link = link(&LinkInput {
            prev: &self.link,
            incarnation: self.incarnation,
            topic: self.target.topic,
            partition: self.target.partition,
            seq: self.seq,
            recorded_at,
            content: &content,
        });
        let frame = Frame {
            target: self.target,
            incarnation: self.incarnation,
            seq: self.seq,
            recorded_at,
            content,
            link,
            body,
        };
        self.seq += 1;
        self.link = link;
        frame
    }
}

/// Appends `frame` as it is.
pub(crate) async fn append(log: &dyn Log, frame: Frame) -> Position {
    let reservation = log.reserve(1, frame.body.len() as u64).await.unwrap();
    log.append(reservation, frame).await.unwrap()
}

pub(crate) fn target_of(kind: Kind, key: &str) -> TopicPartition {
    TopicPartition { topic: kind.topic(), partition: partition_of(key) }
}

/// A running worker.
pub(crate) struct Run {
    pub(crate) tasks: Tasks,
    pub(crate) task: JoinHandle<()>,
    pub(crate) status: watch::Receiver<StoreStatus>,
    registry: Registry,
}

impl Run {
    /// Waits for a state and gives its detail.
    pub(crate) async fn reached(&mut self, state: StoreState) -> String {
        let found = self.status.wait_for(|status| status.state == state);
        tokio::time::timeout(SOON, found).await.expect("the state is reached").unwrap().detail.clone()
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().unwrap()
    }

    /// Stops in good order.
    pub(crate) async fn stop(self) {
        self.tasks.stop().await;
        self.task.await.unwrap();
    }

    /// As a crash: the worker is gone at whatever it awaits now.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.tasks.join().await;
    }
}
