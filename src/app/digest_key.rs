//! The key of a tenant's digests: `<data-dir>/keys/digest`, made when there is none.

use std::path::Path;

use crate::base::random_bytes;
use crate::db::secret_file;
use crate::redact::DigestKey;

const FILE: &str = "digest";

/// The key cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum DigestKeyError {
    /// There is none.
    #[error("there is no digest key in {path}: `annals serve` makes one at its first start")]
    Missing {
        /// Where it would be.
        path: String,
    },
    /// What is there is no key. Nobody makes another one in its place: digests could not be compared any more.
    #[error("{path} is not a digest key of 64 hexadecimal digits: bring the right file back")]
    Damaged {
        /// The file.
        path: String,
    },
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] crate::db::Error),
}

/// The key of the data directory `root`, made when there is none.
///
/// # Errors
/// [`DigestKeyError`].
pub fn read_or_create(root: &Path) -> Result<DigestKey, DigestKeyError> {
    match read(root) {
        Err(DigestKeyError::Missing { .. }) => {
            secret_file::write(root, FILE, &hex::encode(random_bytes::<32>()))?;
            read(root)
        }
        other => other,
    }
}

/// The key of the data directory `root`.
///
/// # Errors
/// [`DigestKeyError`].
pub fn read(root: &Path) -> Result<DigestKey, DigestKeyError> {
    let path = || root.join("keys").join(FILE).display().to_string();
    let text = secret_file::read(root, FILE)?.ok_or_else(|| DigestKeyError::Missing { path: path() })?;
    let mut key = [0; 32];
    hex::decode_to_slice(&text, &mut key).map_err(|_| DigestKeyError::Damaged { path: path() })?;
    Ok(DigestKey::new(&key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_is_made_once_for_its_owner_alone_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path()), Err(DigestKeyError::Missing { .. })));
        let made = read_or_create(dir.path()).unwrap();
        assert_eq!(read_or_create(dir.path()).unwrap().id(), made.id());
        let file = dir.path().join("keys/digest");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "abc").unwrap();
        assert!(matches!(read_or_create(dir.path()), Err(DigestKeyError::Damaged { .. })));
    }
}
