//! What a process start says of itself: `system.started`, checkpoints of the lane heads, and the closing of lanes.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::event::{
    Event, Facts, Gap, LaneClosed, LaneHead, Personal, Retention, Started, Stopping, SystemCheckpoint, Topic,
};
use crate::log::{Lanes, LogId, Receipt, RecordError, Refusal, Reservation};

/// A lane that a dead incarnation left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenLane {
    /// Whose.
    pub(super) incarnation: Uuid,
    /// Its end.
    pub(super) head: LaneHead,
}

async fn record(lanes: &Lanes, facts: &Facts) -> Result<Receipt, RecordError> {
    lanes.record(event(lanes, facts)?).await
}

fn event(lanes: &Lanes, facts: &Facts) -> Result<Event, RecordError> {
    let key = lanes.incarnation().to_string();
    let built = lanes.draft().build(lanes.clock().now(), &key, facts, &Personal::default());
    built.map_err(|error| RecordError::Refused(Refusal::Failed(error.to_string())))
}

/// Says that the log could not write for a while, in the room that the log set aside for it. The event is sequenced
/// before this returns its future, so that it stands before all that is accepted afterwards.
pub(super) fn gap(
    lanes: &Lanes,
    gap: Gap,
    room: Reservation,
) -> impl Future<Output = Result<Receipt, RecordError>> + Send + use<> {
    let recorded = event(lanes, &Facts::Gap(gap)).map(|event| lanes.record_in(room, event));
    async move { recorded?.await }
}

/// The first event of an incarnation.
///
/// # Errors
/// [`RecordError`].
pub(super) async fn started(lanes: &Lanes, log_id: LogId, command: &str) -> Result<(), RecordError> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let facts = Facts::Started(Started { version, log_id: log_id.0, command: command.to_owned() });
    record(lanes, &facts).await.map(|_| ())
}

/// Closes the lanes that dead incarnations left open; returns those incarnations.
///
/// # Errors
/// [`RecordError`].
pub(super) async fn close_dead(lanes: &Lanes, open: Vec<OpenLane>) -> Result<Vec<Uuid>, RecordError> {
    let mut by_incarnation: BTreeMap<Uuid, Vec<LaneHead>> = BTreeMap::new();
    for lane in open {
        by_incarnation.entry(lane.incarnation).or_default().push(lane.head);
    }
    for (&lane_incarnation, heads) in &by_incarnation {
        for head in heads {
            record(lanes, &Facts::LaneClosed(LaneClosed { lane_incarnation, head: head.clone() })).await?;
        }
    }
    Ok(by_incarnation.into_keys().collect())
}

/// Publishes the heads of all lanes of this incarnation.
///
/// # Errors
/// [`RecordError`].
pub(super) async fn checkpoint(lanes: &Lanes) -> Result<(), RecordError> {
    record(lanes, &Facts::Checkpoint(SystemCheckpoint { heads: lanes.heads() })).await.map(|_| ())
}

/// Says what is about to be dropped for its age.
///
/// # Errors
/// [`RecordError`]: nothing may be dropped.
pub(super) async fn retention(lanes: &Lanes, fact: Retention) -> Result<(), RecordError> {
    record(lanes, &Facts::Retention(fact)).await.map(|_| ())
}

/// The last events of an incarnation. Whoever still records, a slow client's request for one, is refused as closed from
/// here on: an event behind the end of its lane would look like a forged one.
///
/// # Errors
/// [`RecordError`].
pub(super) async fn stop(lanes: &Lanes, reason: &str) -> Result<(), RecordError> {
    lanes.end(|target| target.topic != Topic::System);
    record(lanes, &Facts::Stopping(Stopping { reason: reason.to_owned() })).await?;
    checkpoint(lanes).await?;
    let lane_incarnation = lanes.incarnation();
    for head in lanes.heads().into_iter().filter(|head| head.topic != Topic::System) {
        record(lanes, &Facts::LaneClosed(LaneClosed { lane_incarnation, head })).await?;
    }
    // The lane that carries these events names, last, the record just before.
    for head in lanes.heads().into_iter().filter(|head| head.topic == Topic::System) {
        record(lanes, &Facts::LaneClosed(LaneClosed { lane_incarnation, head })).await?;
    }
    lanes.end(|_| true);
    Ok(())
}
