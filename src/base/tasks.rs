//! The one place that spawns tasks: named, cancelled together, joined, and a panic is never lost.

use std::future::Future;

use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// A family of tasks with one cancel token. Clones share the family.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl Tasks {
    /// An empty family.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fires when the family is asked to stop.
    #[must_use]
    pub fn cancel_token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Runs `future` as the task `name`, in the span of whoever spawns it. A panic is logged as an error and seen by
    /// whoever awaits the handle.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(output) => output,
                Err(panic) => {
                    tracing::error!(task.name = name, "a task panicked");
                    std::panic::resume_unwind(panic)
                }
            }
        };
        tokio::spawn(self.tracker.track_future(task.in_current_span()))
    }

    /// Asks all tasks to stop and waits until each has.
    pub async fn stop(&self) {
        self.cancel.cancel();
        self.join().await;
    }

    /// Waits until each task has ended, without asking.
    pub async fn join(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
