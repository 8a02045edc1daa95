//! The built-in tools on a real Postgres: answers, limits, refusals, cancellation.

#![expect(clippy::unwrap_used, reason = "what fails in a helper fails its test")]

pub(crate) mod caller;
mod catalog;
mod escapes;
mod platform;
mod query;
mod roles;
mod sample;
mod search;
mod stopping;
