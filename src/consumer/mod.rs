//! Consumers: follow the log by partition under leases and apply what they read to a projection, exactly once in effect.
//!
//! One transaction per batch moves rows, lane heads and checkpoints together. Nothing here decides what an event means
//! as rows, and nothing in the path of a call waits for it. The closer beside it ends calls that nobody else can end.

mod adopt;
mod backoff;
mod batch;
mod closures;
pub mod lane;
mod lease;
mod metrics;
mod passed;
mod sort;
mod state;
mod status;
mod worker;

pub use adopt::{KnownHead, REMEDY, Resume, Standing, follow, known_heads, standings};
pub(crate) use batch::REJECTED;
pub use closures::{Closer, CloserError, Pass};
pub use metrics::Metrics;
pub use passed::behind;
pub use status::{StoreState, StoreStatus};
pub use worker::{Options, Pools, Worker};
