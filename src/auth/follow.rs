//! Follows `annals.admin`, so that the snapshot of keys is current without asking Postgres.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Keys;
use crate::base::planted;
use crate::event::Decoded;
use crate::log::{ReadError, Reader};

const RECORDS_MAX: usize = 256;

/// How soon it reads again after the system failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Feeds `reader`'s events to `keys` until `stop` fires or the log is closed. The reader must stand at or before
/// the point at which the keys are loaded from Postgres.
///
/// # Errors
/// [`ReadError`] when the log is not what was written; the snapshot is stale from then on. What the system failed to read
/// is read again.
pub async fn follow(
    mut reader: Box<dyn Reader>,
    keys: Arc<Keys>,
    stop: CancellationToken,
) -> Result<(), ReadError> {
    loop {
        let stored = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            stored = reader.next(RECORDS_MAX) => stored,
        };
        let stored = match stored {
            Ok(stored) => stored,
            Err(ReadError::Closed) => return Ok(()),
            Err(error @ ReadError::Io { .. }) if !planted::armed("key_follower_gives_up") => {
                tracing::error!(%error, "changes of keys cannot be read; trying again");
                if stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await.is_none() {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        for stored in stored {
            match Decoded::read(stored.frame.target.topic, &stored.frame.body) {
                Ok(event) => keys.follow(&event),
                Err(error) => {
                    tracing::error!(error = %error, position = %stored.position, "an admin event cannot be read");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::log::{Position, Stored};

    struct Failing(VecDeque<ReadError>);

    impl Reader for Failing {
        fn next(&mut self, _: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
            let error = self.0.pop_front().unwrap();
            async move { Err(error) }.boxed()
        }

        fn next_ready(&mut self, records_max: usize) -> BoxFuture<'_, Result<Vec<Stored>, ReadError>> {
            self.next(records_max)
        }
    }

    #[tokio::test]
    async fn what_the_system_failed_to_read_is_read_again() {
        let file = || ReadError::Io { file: "one".into(), cause: "too many open files".into() };
        let followed = async |errors: Vec<ReadError>| {
            let reader = Box::new(Failing(errors.into()));
            follow(reader, Arc::new(Keys::default()), CancellationToken::new()).await
        };
        assert_eq!(followed(vec![file(), ReadError::Closed]).await, Ok(()));
        let lost = ReadError::NotFound(Position(3));
        assert_eq!(followed(vec![file(), lost.clone()]).await, Err(lost));
    }
}
