//! The built-in tools on a real Postgres: answers, limits, refusals, cancellation.

mod caller;
mod escapes;
mod platform;
mod query;
mod roles;
mod sample;
mod stopping;
