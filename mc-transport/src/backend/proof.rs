//! Showing over one connection that a secret is known which came over another.

use std::fmt;
use std::io;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// 128 random bits that one side chose for one handshake.
pub type Nonce = [u8; 16];

/// Proof that its sender knows a secret.
pub type Proof = [u8; 32];

/// The name of the side that proves itself. The two sides of a protocol differ, so that neither
/// can repeat the other's proof.
pub type Label = [u8; 16];

/// The random secret of one transport that processes connect to beside another one.
///
/// A node gives it, with the endpoint, to peers that reach it another way. A process that
/// then answers at the endpoint and knows it, too, *is* that node: an equal name or address in
/// another namespace or on another machine is not mistaken for it. The secret itself never
/// crosses the connection that it proves.
#[derive(Clone, Copy)]
pub struct NodeSecret([u8; 16]);

impl NodeSecret {
    /// A new one.
    ///
    /// # Errors
    /// The system's, when it gives no random bytes.
    pub fn random() -> io::Result<Self> {
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

    /// The proof of the side with this label in a handshake with the nonces of the side that
    /// connected and of the one that accepted.
    #[must_use]
    pub fn proof(&self, label: &Label, connected: &Nonce, accepted: &Nonce) -> Proof {
        let mut hash = Sha256::new();
        hash.update(label);
        hash.update(self.0);
        hash.update(connected);
        hash.update(accepted);
        hash.finalize().into()
    }

    /// Returns whether `proof` is the one that [`proof`](Self::proof) makes.
    #[must_use]
    pub fn is_proven(
        &self,
        label: &Label,
        connected: &Nonce,
        accepted: &Nonce,
        proof: &Proof,
    ) -> bool {
        self.proof(label, connected, accepted).ct_eq(proof).into()
    }
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecret(..)")
    }
}

/// 128 random bits.
///
/// # Errors
/// What the system said.
pub fn nonce() -> io::Result<Nonce> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(io::Error::from)?;
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &Label = b"mc-shm/1 client\0";
    const OWNER: &Label = b"mc-shm/1 owner\0\0";

    #[test]
    fn only_the_secret_proves() {
        let (client, owner) = (*b"0123456789abcdef", *b"fedcba9876543210");
        let secret = NodeSecret::from_bytes(*b"sixteen bytes of");
        let proof = secret.proof(OWNER, &client, &owner);
        assert!(secret.is_proven(OWNER, &client, &owner, &proof));
        assert!(!secret.is_proven(CLIENT, &client, &owner, &proof), "not repeated");
        assert!(!secret.is_proven(OWNER, &owner, &client, &proof));
        let other = NodeSecret::from_bytes(*b"sixteen bytes or");
        assert!(!other.is_proven(OWNER, &client, &owner, &proof));
        assert_eq!(format!("{secret:?}"), "NodeSecret(..)");
        // The example of docs/shm-wire.md.
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "83f7a37ef479a1f69f9178b442376d1f95576938a3273c4a76e08c19158624e7");
    }
}
