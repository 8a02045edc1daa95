//! Small secrets of other parts in `<data-dir>/keys/`, kept as the passwords of the roles are.

use std::path::Path;

use super::Error;
use super::keys::{Keys, write_secret};

/// The secret `name`; none when there is no file.
///
/// # Errors
/// [`Error::Io`] with the path.
pub fn read(data_dir: &Path, name: &str) -> Result<Option<String>, Error> {
    Keys::open(data_dir)?.read(name)
}

/// Writes the secret `name`: whole or not at all, for its owner alone.
///
/// # Errors
/// [`Error::Io`] with the path.
pub fn write(data_dir: &Path, name: &str, text: &str) -> Result<(), Error> {
    write_secret(&Keys::open(data_dir)?.path(name), text)
}
