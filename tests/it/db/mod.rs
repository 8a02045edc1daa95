//! The private Postgres, its roles and its state tables, on real servers.

mod private;
pub(crate) mod server;
