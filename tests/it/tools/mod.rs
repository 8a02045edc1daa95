//! The built-in tools on a real Postgres: answers, limits, refusals, cancellation.

mod caller;
mod query;
mod sample;
