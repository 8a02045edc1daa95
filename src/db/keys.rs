//! The passwords of the login roles: one random secret per role in `<data-dir>/keys/`, and the SCRAM verifier that
//! Postgres stores, computed here so that no statement ever carries a password.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::Error;
use crate::base::random_bytes;

/// What Postgres itself uses; a 256-bit random password needs no more.
const ITERATIONS: u32 = 4096;

/// The directory of secrets, mode 0700.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    directory: PathBuf,
}

impl Keys {
    pub(super) fn open(data_dir: &Path) -> Result<Self, Error> {
        let directory = data_dir.join("keys");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(Error::io("create", &directory))?;
        Ok(Self { directory })
    }

    /// Where the password of `role` is.
    pub(super) fn path(&self, role: &str) -> PathBuf {
        self.directory.join(role)
    }

    /// The password of `role`; none when there is no file.
    pub(super) fn read(&self, role: &str) -> Result<Option<String>, Error> {
        let path = self.path(role);
        match std::fs::read_to_string(&path) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// The password of `role`, made when there is none. The file appears whole or not at all.
    pub(super) fn read_or_create(&self, role: &str) -> Result<String, Error> {
        if let Some(password) = self.read(role)? {
            return Ok(password);
        }
        let password = URL_SAFE_NO_PAD.encode(random_bytes::<32>());
        write_secret(&self.path(role), &password)?;
        Ok(password)
    }
}

/// Writes a file that only its owner can read, whole or not at all.
pub(super) fn write_secret(path: &Path, text: &str) -> Result<(), Error> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(Error::io("create", &temporary))?;
    file.set_permissions(PermissionsExt::from_mode(0o600)).map_err(Error::io("protect", &temporary))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all())
        .map_err(Error::io("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::io("rename into place", path))?;
    sync_directory(path.parent().unwrap_or(path))
}

/// Makes the names in `directory` durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), Error> {
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(Error::io("sync", directory))
}

/// A SCRAM-SHA-256 verifier of `password`, which must be ASCII, as Postgres takes it in place of a password.
pub(super) fn scram_verifier(password: &str) -> String {
    verifier_with_salt(password, &random_bytes::<16>())
}

fn verifier_with_salt(password: &str, salt: &[u8]) -> String {
    let salted = salted_password(password, salt);
    let client_key = hmac(&salted, &[b"Client Key"]);
    let stored_key = Sha256::digest(client_key);
    let server_key = hmac(&salted, &[b"Server Key"]);
    format!(
        "SCRAM-SHA-256${ITERATIONS}:{}${}:{}",
        STANDARD.encode(salt),
        STANDARD.encode(stored_key),
        STANDARD.encode(server_key)
    )
}

/// `Hi` of RFC 5802.
fn salted_password(password: &str, salt: &[u8]) -> [u8; 32] {
    let mut block = hmac(password.as_bytes(), &[salt, &1_u32.to_be_bytes()]);
    let mut result = block;
    for _ in 1..ITERATIONS {
        block = hmac(password.as_bytes(), &[&block]);
        for (byte, other) in result.iter_mut().zip(block) {
            *byte ^= other;
        }
    }
    result
}

/// HMAC-SHA-256 (RFC 2104). The key has at most 64 bytes: ours are 43 or 32.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut padded = [with; 64];
        for (byte, key) in padded.iter_mut().zip(key) {
            *byte ^= key;
        }
        padded
    };
    let mut inner = Sha256::new_with_prefix(pad(0x36));
    for part in parts {
        inner.update(part);
    }
    Sha256::new_with_prefix(pad(0x5c)).chain_update(inner.finalize()).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_is_the_one_of_rfc_7677() {
        // RFC 7677 section 3: user "user", password "pencil", 4096 iterations; its server signature follows from
        // the server key checked here.
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let verifier = verifier_with_salt("pencil", &salt);
        assert_eq!(
            verifier,
            "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
             WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
    }

    #[test]
    fn a_password_is_made_once_and_only_its_owner_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let keys = Keys::open(directory.path()).unwrap();
        let first = keys.read_or_create("annals_writer").unwrap();
        assert_eq!(first.len(), 43);
        assert_eq!(keys.read_or_create("annals_writer").unwrap(), first);
        assert_ne!(keys.read_or_create("annals_reader").unwrap(), first);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&keys.path("annals_writer")), 0o600);
        assert_eq!(mode(&directory.path().join("keys")), 0o700);
    }
}
