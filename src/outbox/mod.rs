//! The outbox: events of state changes, written with the change in one transaction and relayed to the log.
//!
//! A row is deleted only after its append is durable; a relay that dies in between appends it again, which readers
//! drop by the event's id (`once`).

mod relay;

pub use relay::{Relay, relay};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::{Postgres, Transaction};
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::event::Sealed;

/// An event of the outbox is not durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The log did not take it in time.
    #[error("the log did not take it in time")]
    Slow,
    /// It is in the log, but this process did not act on it in time.
    #[error("this process did not see it in time")]
    NotFollowed,
}

/// Where state changes leave their events. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    wake: Notify,
    waiting: Mutex<HashMap<Uuid, oneshot::Sender<()>>>,
}

/// Resolves when one event is durable in the log.
#[derive(Debug)]
pub struct Published {
    event_id: Uuid,
    shared: Arc<Shared>,
    done: oneshot::Receiver<()>,
}

impl Outbox {
    /// An outbox without a relay yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the event to `tx`. Call [`Outbox::wake`] after the commit.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn insert(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        sealed: &Sealed,
    ) -> Result<Published, sqlx::Error> {
        sqlx::query("INSERT INTO annals.outbox (event_id, topic, key, body) VALUES ($1, $2, $3, $4)")
            .bind(sealed.event.id)
            .bind(sealed.event.target.topic.name())
            .bind(&sealed.key)
            .bind(sealed.event.body.as_ref())
            .execute(&mut **tx)
            .await?;
        let (sender, done) = oneshot::channel();
        self.waiting().insert(sealed.event.id, sender);
        Ok(Published { event_id: sealed.event.id, shared: Arc::clone(&self.shared), done })
    }

    /// Tells the relay that there is something.
    pub fn wake(&self) {
        self.shared.wake.notify_one();
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, oneshot::Sender<()>>> {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn published(&self, event_id: Uuid) {
        if let Some(waiter) = self.waiting().remove(&event_id) {
            // The waiter may have given up: the event is durable all the same.
            waiter.send(()).unwrap_or(());
        }
    }
}

impl Published {
    /// Waits until the event is durable.
    ///
    /// # Errors
    /// [`PublishError::Slow`] after `at_most`; the event is published later all the same.
    pub async fn wait(mut self, at_most: Duration) -> Result<(), PublishError> {
        match tokio::time::timeout(at_most, &mut self.done).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(PublishError::Slow),
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.event_id);
    }
}
