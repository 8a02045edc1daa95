//! Lanes: the order and the chain of one incarnation's events, above the log port and below everyone who records.
//!
//! An event gets its sequence number only after every check that can refuse has passed, so a lane never has holes.

use std::sync::Arc;

use futures::FutureExt;
use parking::LaneState;
use uuid::Uuid;

use super::{AppendError, Frame, Log, Position, Refusal, Reservation};
use crate::base::{Clock, Timestamp, planted, sha256};
use crate::event::{AckClass, Draft, Event, LaneHead, Link, LinkInput, TopicPartition, link};
use crate::redact::Redactor;

/// What the log says of a recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Where it stands.
    pub position: Position,
    /// Its number in its lane.
    pub seq: u64,
    /// The lane's link at it.
    pub link: Link,
    /// The lane's clock.
    pub recorded_at: Timestamp,
}

/// An event was not recorded, or may not have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RecordError {
    /// Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It may be written, now or later, in its place in the lane.
    #[error("it is not known whether the event was written: {0}")]
    Uncertain(String),
}

impl From<AppendError> for RecordError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Refused(refusal) => Self::Refused(refusal),
            AppendError::Uncertain(cause) => Self::Uncertain(cause),
        }
    }
}

/// The lanes of one incarnation.
pub struct Lanes {
    log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    draft: Draft,
    lanes: Arc<[LaneState]>,
}

impl Lanes {
    /// New lanes: a new incarnation of `tenant` on `log`, under the rules of redaction that are always in force and a
    /// digest key of its own.
    #[must_use]
    pub fn new(log: Arc<dyn Log>, clock: Arc<dyn Clock>, tenant: &str) -> Self {
        Self::redacting(log, clock, tenant, Redactor::shared())
    }

    /// The same under `redactor`.
    #[must_use]
    pub fn redacting(
        log: Arc<dyn Log>,
        clock: Arc<dyn Clock>,
        tenant: &str,
        redactor: Arc<Redactor>,
    ) -> Self {
        let (mut ack, ack_check) = log.ack_class();
        if planted::armed("ack_class_overstated") {
            ack = AckClass::Replicated;
        }
        let source = format!("urn:annals:{tenant}");
        let draft = Draft { source, incarnation: Uuid::new_v4(), ack, ack_check, redactor };
        let lanes = TopicPartition::all().map(|_| LaneState::default()).collect();
        Self { log, clock, draft, lanes }
    }

    /// Builds events of this incarnation.
    #[must_use]
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// This incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Uuid {
        self.draft.incarnation
    }

    /// The clock that stamps the lanes.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The log underneath.
    #[must_use]
    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    /// Sets room aside: see [`Log::reserve`].
    ///
    /// # Errors
    /// [`RecordError::Refused`].
    pub async fn reserve(&self, records: u32, bytes: u64) -> Result<Reservation, RecordError> {
        Ok(self.log.reserve(records, bytes).await?)
    }

    /// Records `event` and waits until it is durable.
    ///
    /// # Errors
    /// [`RecordError`].
    pub async fn record(&self, event: Event) -> Result<Receipt, RecordError> {
        let bytes = event.body.len() as u64;
        let reservation = self.reserve(1, bytes).await?;
        self.record_in(reservation, event).await
    }

    /// Records `event` in room that was set aside before. The event is sequenced before this returns its future.
    ///
    /// # Errors
    /// [`RecordError::Refused`] when the lane stopped, else [`RecordError::Uncertain`].
    pub fn record_in(
        &self,
        reservation: Reservation,
        event: Event,
    ) -> impl Future<Output = Result<Receipt, RecordError>> + Send + use<> {
        let target = event.target;
        let sent = self.send(&self.lanes[target.index()], reservation, event);
        let states = Arc::clone(&self.lanes);
        async move {
            let (ack, receipt) = sent?;
            match ack.await {
                Ok(position) => Ok(Receipt { position, ..receipt }),
                // The engine keeps it and writes it before all that follows.
                Err(error @ AppendError::Uncertain(_)) => Err(error.into()),
                Err(error @ AppendError::Refused(_)) => {
                    // It was sequenced and is missing below, so nothing may be chained behind it.
                    let refusal = Refusal::Failed(error.to_string());
                    states[target.index()].lock().stopped.get_or_insert(refusal);
                    Err(error.into())
                }
            }
        }
    }

    /// Ends the lanes that `which` names: what comes later is refused as closed and gets no number. A process does this
    /// before it states where its lanes end, so that no late request can make that statement wrong.
    pub fn end(&self, which: impl Fn(TopicPartition) -> bool) {
        for target in TopicPartition::all().filter(|target| which(*target)) {
            self.lanes[target.index()].lock().stopped.get_or_insert(Refusal::Closed);
        }
    }

    fn send(
        &self,
        state: &LaneState,
        reservation: Reservation,
        event: Event,
    ) -> Result<(super::Ack, Receipt), RecordError> {
        let content = sha256(&event.body);
        let mut lane = state.lock();
        if let Some(refusal) = &lane.stopped {
            return Err(refusal.clone().into());
        }
        let recorded_at = self.clock.now().max(lane.recorded_at);
        let seq = lane.next_seq;
        let link = link(&LinkInput {
            prev: &lane.link,
            incarnation: self.draft.incarnation,
            topic: event.target.topic,
            partition: event.target.partition,
            seq,
            recorded_at,
            content: &content,
        });
        let frame = Frame {
            target: event.target,
            incarnation: self.draft.incarnation,
            seq,
            recorded_at,
            content,
            link,
            body: event.body,
        };
        lane.next_seq += 1;
        lane.link = link;
        lane.recorded_at = recorded_at;
        if planted::armed("event_shed") && seq % 8 == 7 {
            return Ok((
                async { Ok(Position(0)) }.boxed(),
                Receipt { position: Position(0), seq, link, recorded_at },
            ));
        }
        let ack = self.log.append(reservation, frame);
        drop(lane);
        Ok((ack, Receipt { position: Position(0), seq, link, recorded_at }))
    }

    /// The heads of all non-empty lanes, ordered by topic and partition.
    #[must_use]
    pub fn heads(&self) -> Vec<LaneHead> {
        TopicPartition::all()
            .filter_map(|target| {
                let lane = self.lanes[target.index()].lock();
                let seq = lane.next_seq.checked_sub(1)?;
                Some(LaneHead {
                    topic: target.topic,
                    partition: target.partition,
                    seq,
                    link: hex::encode(lane.link),
                })
            })
            .collect()
    }
}

mod parking {
    //! The lane's lock: held for a hash and a hand-over, never across an await.

    use std::sync::{Mutex, MutexGuard, PoisonError};

    use crate::base::Timestamp;
    use crate::event::Link;
    use crate::log::Refusal;

    #[derive(Default)]
    pub(super) struct LaneState(Mutex<Lane>);

    #[derive(Default)]
    pub(super) struct Lane {
        pub(super) next_seq: u64,
        pub(super) link: Link,
        pub(super) recorded_at: Timestamp,
        pub(super) stopped: Option<Refusal>,
    }

    impl LaneState {
        pub(super) fn lock(&self) -> MutexGuard<'_, Lane> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
