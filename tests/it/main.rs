//! The integration tests, one binary: real servers, real files, real processes.

mod db;
mod query;
mod tools;
