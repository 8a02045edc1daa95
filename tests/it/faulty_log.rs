//! A log in front of the real one that holds acks back, refuses or loses them on request.

use std::sync::{Arc, Mutex};

use annals::event::{AckCheck, AckClass, Decoded, Kind, TopicPartition};
use annals::log::{
    Ack, AppendError, Frame, Health, Log, LogId, Position, ReadError, Reader, Refusal, Reservation, Stored,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

/// What to do with frames of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Ack only after [`FaultyLog::release`].
    Hold(Kind),
    /// Write, but say that it is not known.
    LoseAck(Kind),
    /// Refuse every reservation.
    Refuse,
}

pub(crate) struct FaultyLog {
    inner: Arc<dyn Log>,
    fault: Mutex<Fault>,
    seen: watch::Sender<Vec<Kind>>,
    released: watch::Sender<bool>,
    refused: watch::Sender<bool>,
}

impl FaultyLog {
    pub(crate) fn new(inner: Arc<dyn Log>) -> Self {
        Self {
            inner,
            fault: Mutex::new(Fault::None),
            seen: watch::channel(Vec::new()).0,
            released: watch::channel(false).0,
            refused: watch::channel(false).0,
        }
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }

    /// Waits until a frame of `kind` was handed over.
    pub(crate) async fn handed_over(&self, kind: Kind) {
        self.seen.subscribe().wait_for(|seen| seen.contains(&kind)).await.unwrap();
    }

    /// Waits until a reservation was refused on request.
    pub(crate) async fn refused(&self) {
        self.refused.subscribe().wait_for(|refused| *refused).await.unwrap();
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }
}

impl Log for FaultyLog {
    fn id(&self) -> LogId {
        self.inner.id()
    }

    fn ack_class(&self) -> (AckClass, AckCheck) {
        self.inner.ack_class()
    }

    fn reserve(&self, records: u32, bytes: u64) -> BoxFuture<'_, Result<Reservation, AppendError>> {
        if self.fault() == Fault::Refuse {
            self.refused.send_replace(true);
            return async { Err(AppendError::Refused(Refusal::Full("planned".into()))) }.boxed();
        }
        self.inner.reserve(records, bytes)
    }

    fn append(&self, reservation: Reservation, frame: Frame) -> Ack {
        let kind = Decoded::read(frame.target.topic, &frame.body).unwrap().kind;
        let ack = self.inner.append(reservation, frame);
        self.seen.send_modify(|seen| seen.push(kind));
        match self.fault() {
            Fault::Hold(held) if held == kind => {
                let mut released = self.released.subscribe();
                async move {
                    released.wait_for(|released| *released).await.unwrap();
                    ack.await
                }
                .boxed()
            }
            Fault::LoseAck(lost) if lost == kind => async move {
                ack.await?;
                Err(AppendError::Uncertain("planned".into()))
            }
            .boxed(),
            Fault::None | Fault::Hold(_) | Fault::LoseAck(_) | Fault::Refuse => ack,
        }
    }

    fn reader(&self, from: &[(TopicPartition, Option<Position>)]) -> Result<Box<dyn Reader>, ReadError> {
        self.inner.reader(from)
    }

    fn reader_from_end(&self, targets: &[TopicPartition]) -> Result<Box<dyn Reader>, ReadError> {
        self.inner.reader_from_end(targets)
    }

    fn frame_at(
        &self,
        target: TopicPartition,
        position: Position,
    ) -> BoxFuture<'_, Result<Stored, ReadError>> {
        self.inner.frame_at(target, position)
    }

    fn count_after(
        &self,
        target: TopicPartition,
        after: Option<Position>,
    ) -> BoxFuture<'_, Result<u64, ReadError>> {
        self.inner.count_after(target, after)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), AppendError>> {
        self.inner.close()
    }
}
