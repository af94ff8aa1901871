//! Showing at the Unix socket that a secret is known which the TCP port told.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// 128 random bits that one side chose for one handshake.
pub(super) type Nonce = [u8; 16];

/// What only who knows the secret can say in a handshake.
pub(super) type Proof = [u8; 32];

/// The random secret of one server. It crosses the TCP port, never the Unix socket.
#[derive(Clone, Copy)]
pub(super) struct Secret(pub(super) [u8; 16]);

/// Who proves; the two say different things, so that neither can repeat the other's.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Dummy,
    Server,
}

impl Role {
    fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Dummy => b"mc-real/1 dummy\0",
            Self::Server => b"mc-real/1 server",
        }
    }
}

impl Secret {
    /// What `role` says in a handshake with these nonces.
    pub(super) fn proof(self, role: Role, dummy: &Nonce, server: &Nonce) -> Proof {
        let mut hash = Sha256::new();
        hash.update(role.label());
        hash.update(self.0);
        hash.update(dummy);
        hash.update(server);
        hash.finalize().into()
    }

    /// Whether `proof` is what `role` has to say.
    pub(super) fn is_proven(
        self,
        role: Role,
        dummy: &Nonce,
        server: &Nonce,
        proof: &Proof,
    ) -> bool {
        self.proof(role, dummy, server).ct_eq(proof).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// 128 random bits.
pub(super) fn random() -> std::io::Result<[u8; 16]> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(std::io::Error::other)?;
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_proves_and_only_for_its_role() {
        let (dummy, server) = (*b"0123456789abcdef", *b"fedcba9876543210");
        let secret = Secret(*b"sixteen bytes of");
        let proof = secret.proof(Role::Server, &dummy, &server);
        assert!(secret.is_proven(Role::Server, &dummy, &server, &proof));
        assert!(!secret.is_proven(Role::Dummy, &dummy, &server, &proof), "not repeated");
        assert!(!secret.is_proven(Role::Server, &server, &dummy, &proof));
        let other = Secret(*b"sixteen bytes or");
        assert!(!other.is_proven(Role::Server, &dummy, &server, &proof));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
