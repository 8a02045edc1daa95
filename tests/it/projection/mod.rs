//! The consumer and the audit projection, on a real log and a real Postgres.

mod rows;
pub(crate) mod stand;
