//! Refusals of callers nobody knows: each is on the record, alone or in a count, and a flood of them costs bounded disk
//! and memory.
//!
//! A counted event holds nothing of a person: no address, no name, no route.

use std::sync::Arc;

use futures::future::join_all;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::flood::{Flood, FloodLimits, Source, Tally, Verdict};
use super::gate::record;
use crate::event::{AuthFailed, Facts, Personal, RequestRefused, Window};
use crate::log::{Health, Lanes, RecordError, Refusal};

/// Stands for the routes of a counted event.
const MANY_ROUTES: &str = "*";
/// The partition key of counted events.
const MANY_SOURCES: &str = "counted";

/// About what an event of a refusal has, bytes.
const EVENT_BYTES: u64 = 1_024;

/// What is refused to somebody unknown, as the facts of one event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Unknown {
    /// Bad or no credentials. `reason` and `source` are what is counted together.
    Login(AuthFailed),
    /// Another refusal before anybody is known. All but route, method, id and the caller is counted together, so it
    /// must come from a closed set.
    Request(RequestRefused),
}

impl Unknown {
    /// Without what differs from one to the next.
    fn counted(self) -> Self {
        let route = MANY_ROUTES.to_owned();
        match self {
            Self::Login(facts) => {
                Self::Login(AuthFailed { key_id: None, route, count: 0, window: None, ..facts })
            }
            Self::Request(facts) => Self::Request(RequestRefused {
                route,
                subject_id: None,
                auth_method: None,
                key_id: None,
                persona: None,
                session_id: None,
                method: None,
                request_id: None,
                count: 0,
                window: None,
                ..facts
            }),
        }
    }

    fn of(self, count: u64, window: Window) -> Self {
        let window = Some(window);
        match self {
            Self::Login(facts) => Self::Login(AuthFailed { count, window, ..facts }),
            Self::Request(facts) => Self::Request(RequestRefused { count, window, ..facts }),
        }
    }

    fn facts(self) -> Facts {
        match self {
            Self::Login(facts) => Facts::AuthFailed(facts),
            Self::Request(facts) => Facts::RequestRefused(facts),
        }
    }
}

/// Counters without labels of callers. Clones share them.
#[derive(Debug, Clone, Default)]
struct Metrics {
    refused: Counter,
    counted: Counter,
}

/// See the module.
pub(super) struct Refusals {
    lanes: Arc<Lanes>,
    flood: Flood<Unknown>,
    opened: Notify,
    metrics: Metrics,
}

impl Refusals {
    pub(super) fn new(lanes: Arc<Lanes>, limits: FloodLimits) -> Self {
        Self { lanes, flood: Flood::new(limits), opened: Notify::new(), metrics: Metrics::default() }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "annals_unauthenticated_refusals",
            "Requests of callers nobody knows that were refused and are on the record",
            self.metrics.refused.clone(),
        );
        registry.register(
            "annals_unauthenticated_refusals_counted",
            "Those of them that are told in counted events, because they came in a flood",
            self.metrics.counted.clone(),
        );
    }

    /// Records one refusal. One of a flood is counted and needs no wait; it may be lost with its window when the process
    /// is killed. A log that does not accept refuses here too, for no refusal may be answered without a record.
    pub(super) async fn record(
        &self,
        ip: Option<&str>,
        what: Unknown,
        personal: &Personal,
    ) -> Result<(), RecordError> {
        let source = Source::of(ip);
        let health = self.lanes.log().health();
        let accepts = health == Health::Accepting;
        match self.flood.one_more(source, what.clone().counted(), accepts, self.lanes.clock().as_ref()) {
            Verdict::Told => record(&self.lanes, &source.key(), &what.facts(), personal).await?,
            Verdict::Counted { opens } => {
                self.metrics.counted.inc();
                if opens {
                    self.opened.notify_one();
                }
            }
            Verdict::Neither => return Err(self.refused_by(&health).await),
        }
        self.metrics.refused.inc();
        Ok(())
    }

    /// Lets the log count what it refuses, for its gap.
    async fn refused_by(&self, health: &Health) -> RecordError {
        let cause = match health {
            Health::Refusing(cause) => cause.clone(),
            Health::Accepting => "it has just begun to accept".to_owned(),
        };
        let room = self.lanes.reserve(1, EVENT_BYTES).await;
        room.err().unwrap_or(RecordError::Refused(Refusal::Suspended(cause)))
    }

    /// Closes windows in time until `stop` fires, and then the last one.
    pub(super) async fn close_windows(&self, stop: CancellationToken) {
        let next = async || {
            self.opened.notified().await;
            tokio::time::sleep(self.flood.limits().window).await;
        };
        while stop.run_until_cancelled(next()).await.is_some() {
            self.tell_counted(self.flood.take()).await;
        }
        self.tell_counted(self.flood.close()).await;
    }

    async fn tell_counted(&self, taken: Vec<(Unknown, Tally)>) {
        join_all(taken.into_iter().map(|(what, tally)| self.tell_one_count(what, tally))).await;
    }

    async fn tell_one_count(&self, what: Unknown, tally: Tally) {
        let facts = what.clone().of(tally.count, tally.window()).facts();
        match record(&self.lanes, MANY_SOURCES, &facts, &Personal::default()).await {
            Ok(()) => {}
            Err(RecordError::Uncertain(cause)) => {
                tracing::warn!(cause, "a count of refusals may be written late");
            }
            Err(RecordError::Refused(cause)) => {
                let count = tally.count;
                if self.flood.put_back(what, tally) {
                    self.opened.notify_one();
                } else {
                    tracing::error!(cause = %cause, count, "the last count of refusals could not be recorded");
                }
            }
        }
    }
}
