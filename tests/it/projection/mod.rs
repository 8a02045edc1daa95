//! The consumer and the audit projection, on a real log and a real Postgres.

mod delivery;
mod lanes;
mod rows;
pub(crate) mod stand;
