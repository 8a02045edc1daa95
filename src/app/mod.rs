//! Puts the parts together: a node with its log and lanes, the store behind it, the listeners in front.

mod control;
mod data_dir;
mod run_file;
mod system;

pub use control::{ControlClient, ControlError};
pub use data_dir::DataDir;
pub use run_file::{RunFile, socket_path};
