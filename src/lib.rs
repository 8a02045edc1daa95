//! Annals: an MCP platform that can prove what AI agents did.
//!
//! Modules in the order in which a call's data meets them: [`http`], [`mcp`], [`auth`], [`dispatch`], [`tools`],
//! [`event`], [`log`], [`consumer`], [`projection`], [`query`], [`audit`]; [`verify`] compares the two ends, [`backup`] copies them. Below them
//! [`refusal`], [`db`], [`config`], [`redact`], [`telemetry`] and [`base`]; [`app`] composes. `docs/architecture.md` walks through
//! them.

pub mod app;
pub mod audit;
pub mod auth;
pub mod backup;
pub mod base;
pub mod cli;
pub mod config;
pub mod consumer;
pub mod db;
pub mod dispatch;
pub mod event;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod log;
pub mod mcp;
pub mod outbox;
pub mod projection;
pub mod query;
pub mod redact;
pub mod refusal;
pub mod sample;
pub mod telemetry;
pub mod tools;
pub mod verify;
