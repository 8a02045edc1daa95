//! Load on the log: callers that each wait for the ack of their record before they hand over the next.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use annals::base::{Clock, SystemClock, Timestamp, sha256};
use annals::event::{Event, PARTITIONS, Topic, TopicPartition};
use annals::log::embedded::EmbeddedLog;
use annals::log::{Frame, Lanes, Log};
use bytes::Bytes;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Times, nanos, times};

/// How much of it.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) waiters: usize,
    pub(crate) body: Bytes,
    pub(crate) slice: Duration,
    /// Each waiter stops after so many, if the slice is not over before.
    pub(crate) records_each_max: u64,
}

/// What the callers saw.
pub(crate) struct Driven {
    /// From before the reservation to the ack.
    pub(crate) acks: Times,
    pub(crate) took: Duration,
}

/// Loads the log itself: `reserve` and `append`.
pub(crate) async fn appends(log: &Arc<EmbeddedLog>, load: &Load) -> anyhow::Result<Driven> {
    let (body, content) = (load.body.clone(), sha256(&load.body));
    let incarnation = Uuid::new_v4();
    let log = log.clone();
    drive(load, move |waiter, seq| {
        let (log, body) = (log.clone(), body.clone());
        async move {
            let room = log.reserve(1, body.len() as u64).await?;
            let recorded_at = Timestamp::from_micros(1);
            let target = target(waiter);
            let frame = Frame { target, incarnation, seq, recorded_at, content, link: [0; 32], body };
            log.append(room, frame).await?;
            Ok(())
        }
    })
    .await
}

/// Loads the lanes above the log, which also hash each body and chain it.
pub(crate) async fn records(log: &Arc<EmbeddedLog>, load: &Load) -> anyhow::Result<Driven> {
    let body = load.body.clone();
    let lanes = Arc::new(Lanes::new(log.clone(), Arc::new(SystemClock), "default"));
    drive(load, move |waiter, _| {
        let lanes = lanes.clone();
        let event = Event { target: target(waiter), id: Uuid::nil(), body: body.clone() };
        async move {
            lanes.record(event).await?;
            Ok(())
        }
    })
    .await
}

fn target(waiter: usize) -> TopicPartition {
    let partition = u32::try_from(waiter).unwrap_or(0) % PARTITIONS;
    TopicPartition { topic: Topic::ToolCalls, partition }
}

async fn drive<F, R>(load: &Load, record: F) -> anyhow::Result<Driven>
where
    F: Fn(usize, u64) -> R + Clone + Send + 'static,
    R: Future<Output = anyhow::Result<()>> + Send,
{
    let mut waiters = JoinSet::new();
    let started = SystemClock.monotonic();
    for waiter in 0..load.waiters {
        let (record, slice, records_max) = (record.clone(), load.slice, load.records_each_max);
        waiters.spawn(async move {
            // Not a histogram for each: a thousand of them do not fit the processor's cache.
            let mut acks: Vec<u32> = Vec::new();
            let mut before = SystemClock.monotonic();
            for seq in 0..records_max {
                if before.saturating_duration_since(started) >= slice {
                    break;
                }
                record(waiter, seq).await?;
                let after = SystemClock.monotonic();
                acks.push(u32::try_from(nanos(after.saturating_duration_since(before))).unwrap_or(u32::MAX));
                before = after;
            }
            anyhow::Ok(acks)
        });
    }
    let of_waiters = waiters.join_all().await;
    let took = SystemClock.monotonic().saturating_duration_since(started);
    let mut acks = times()?;
    for of_waiter in of_waiters {
        for ack in of_waiter? {
            acks.record(u64::from(ack))?;
        }
    }
    Ok(Driven { acks, took })
}
