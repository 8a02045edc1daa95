//! The integration tests: one binary, on the real log, the real Postgres and the real server.

mod crash;
mod db;
mod dispatch;
mod faulty_log;
mod harness;
mod query;
mod projection;
mod schemas;
mod server;
mod tools;
