//! The private Postgres, its roles and its state tables, on real servers.

pub(crate) mod external;
mod private;
mod roles;
mod run_as;
mod sample;
pub(crate) mod server;
mod transaction;
mod trouble;
