//! Keyed digests: equal values have equal digests inside one tenant, and nobody without its key can try values.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The key of one tenant's digests: 256 random bits.
#[derive(Clone)]
pub struct DigestKey {
    mac: Hmac<Sha256>,
    id: String,
}

impl std::fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DigestKey({})", self.id)
    }
}

impl DigestKey {
    /// From its bytes.
    ///
    /// # Panics
    /// Never: HMAC takes any key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
        let mut key = Self { mac, id: String::new() };
        let id = key.digest(b"annals.digest-key-id.v1");
        id.chars().take(16).collect::<String>().clone_into(&mut key.id);
        key
    }

    /// One that nobody knows and that ends with the process.
    #[must_use]
    pub fn random() -> Self {
        Self::new(&crate::base::random_bytes::<32>())
    }

    /// Names the key, and tells nothing of it: 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// HMAC-SHA-256 of `bytes`, 64 hexadecimal digits.
    #[must_use]
    pub fn digest(&self, bytes: &[u8]) -> String {
        let mut mac = self.mac.clone();
        mac.update(bytes);
        hex::encode(mac.finalize().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_hmac_sha_256() {
        // RFC 4231 test case 1, its key padded with zeros as HMAC does.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let digest = DigestKey::new(&key).digest(b"Hi There");
        assert_eq!(digest, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }

    #[test]
    fn keys_differ_in_their_digests_and_ids() {
        let (one, other) = (DigestKey::random(), DigestKey::random());
        assert_ne!(one.digest(b"hunter2"), other.digest(b"hunter2"));
        assert_ne!(one.id(), other.id());
        assert_eq!(one.id().len(), 16);
        assert!(!format!("{one:?}").contains(&one.digest(b"")));
    }
}
