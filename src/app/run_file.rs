//! `run.json`: how other commands of the same user reach the running server. Mode 0600, gone after a clean stop.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// The server's process.
    pub pid: u32,
    /// Its incarnation.
    pub incarnation: Uuid,
    /// Where MCP and REST are.
    pub url: String,
    /// Where the metrics are.
    pub metrics_url: String,
    /// The control socket.
    pub socket: PathBuf,
    /// What the control socket asks for.
    pub token: String,
}

impl RunFile {
    /// Writes it in one step, so that a reader never sees half.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("json.new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    }

    /// Reads it; `None` when there is none.
    ///
    /// # Errors
    /// What the system says, or that it is not such a file.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A path for a socket named `name`: in `dir`, or in a fresh private directory under the temporary one when the
/// path would be too long for the kernel (108 bytes; 100 is kept to).
///
/// # Errors
/// What the system says.
pub fn socket_path(dir: &Path, name: &str) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let path = dir.join(name);
    if path.as_os_str().len() <= 100 {
        return Ok(path);
    }
    let short =
        std::env::temp_dir().join(format!("annals-{}", hex::encode(crate::base::random_bytes::<8>())));
    fs::DirBuilder::new().mode(0o700).create(&short)?;
    Ok(short.join(name))
}
