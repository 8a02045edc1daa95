//! Puts the parts together: a node with its log and lanes, the store behind it, the listeners in front.

mod adopt;
mod backup;
mod banner;
mod book;
mod control;
mod data_dir;
pub mod digest_key;
mod error;
mod node;
mod retention;
mod run_file;
mod serve;
mod stdio;
mod stdio_client;
mod store;
mod system;
mod workbench;

pub use adopt::{AdoptError, Adopted, Divergence, adopt, diagnose};
pub use backup::{Backup, record_backup};
pub use control::{ControlClient, ControlError};
pub use data_dir::DataDir;
pub use error::StartError;
pub use node::{Node, NodeError};
pub use run_file::{RunFile, socket_path};
pub use serve::{ServeOptions, serve};
pub use stdio_client::{FromServer, StdioClient, StdioEnd};
pub use workbench::Workbench;

use serve::Services;
