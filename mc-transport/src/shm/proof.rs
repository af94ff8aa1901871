//! Showing over one connection that a secret is known which came over another.

use std::fmt;
use std::io;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::wire::{Nonce, Proof};

/// The random secret of one [`ShmTransport`](super::ShmTransport).
///
/// A node gives it, with the endpoint, to peers that reach it another way. Whoever
/// then answers at the endpoint and knows it, too, *is* that node, and therefore on
/// the same host: an equal name in another namespace or on another machine is not
/// mistaken for it. It never crosses the socket itself.
#[derive(Clone, Copy)]
pub struct ShmSecret([u8; 16]);

impl ShmSecret {
    /// A new one.
    pub(super) fn random() -> io::Result<Self> {
        nonce().map(Self)
    }

    /// The secret that a peer sent.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The secret, to be sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The proof of `role` in a handshake with these nonces.
    pub(super) fn proof(&self, role: Role, client: &Nonce, owner: &Nonce) -> Proof {
        let mut hash = Sha256::new();
        hash.update(role.label());
        hash.update(self.0);
        hash.update(client);
        hash.update(owner);
        hash.finalize().into()
    }

    /// Returns whether `proof` is the proof of `role`.
    pub(super) fn is_proven(
        &self,
        role: Role,
        client: &Nonce,
        owner: &Nonce,
        proof: &Proof,
    ) -> bool {
        self.proof(role, client, owner).ct_eq(proof).into()
    }
}

impl fmt::Debug for ShmSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShmSecret(..)")
    }
}

/// The proving side. The two proofs differ, so that neither can repeat the other's.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Client,
    Owner,
}

impl Role {
    fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Client => b"mc-shm/1 client\0",
            Self::Owner => b"mc-shm/1 owner\0\0",
        }
    }
}

/// 128 random bits.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(io::Error::from)?;
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_proves() {
        let (client, owner) = (*b"0123456789abcdef", *b"fedcba9876543210");
        let secret = ShmSecret::from_bytes(*b"sixteen bytes of");
        let proof = secret.proof(Role::Owner, &client, &owner);
        assert!(secret.is_proven(Role::Owner, &client, &owner, &proof));
        assert!(!secret.is_proven(Role::Client, &client, &owner, &proof), "not repeated");
        assert!(!secret.is_proven(Role::Owner, &owner, &client, &proof));
        let other = ShmSecret::from_bytes(*b"sixteen bytes or");
        assert!(!other.is_proven(Role::Owner, &client, &owner, &proof));
        assert_eq!(format!("{secret:?}"), "ShmSecret(..)");
        // The example of docs/shm-wire.md.
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "83f7a37ef479a1f69f9178b442376d1f95576938a3273c4a76e08c19158624e7");
    }
}
