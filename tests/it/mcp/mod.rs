//! The wire: real requests against a real listener, over the real dispatch and log.

pub(crate) mod harness;
mod legacy;
mod modern;
mod sessions;
mod shared;
