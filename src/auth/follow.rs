//! Follows `annals.admin`, so that the snapshot of keys is current without asking Postgres.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Keys;
use crate::event::Decoded;
use crate::log::{ReadError, Reader};

const RECORDS_MAX: usize = 256;

/// Feeds `reader`'s events to `keys` until `stop` fires or the log is closed. The reader must stand at or before
/// the point at which the keys are loaded from Postgres.
///
/// # Errors
/// [`ReadError`] when the log cannot be read; the snapshot is stale from then on.
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
