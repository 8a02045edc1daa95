//! The integration tests: one binary, on the real log, the real Postgres and the real server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so and ends")]

mod adopt;
mod backup;
mod benchmarks;
mod canary;
mod clients;
mod compliance;
mod context;
mod crash;
mod db;
mod dispatch;
mod docs;
mod faults;
mod faulty_log;
mod flood;
mod gate;
mod harness;
mod http;
mod log;
mod log_conformance;
mod log_files;
mod mcp;
mod mounts;
mod outbox;
mod outcomes;
mod projection;
mod query;
mod rate;
mod reading;
mod refusals;
mod retention;
mod schemas;
mod server;
mod stdio;
mod tampering;
mod tools;
mod verify;
