//! The integration tests: one binary, on the real log, the real Postgres and the real server.

mod db;
mod dispatch;
mod faulty_log;
mod log;
mod schemas;
