//! Tokens: the proof that a client began a put.

use core::fmt;

use siphasher::sip::SipHasher24;

use crate::Purpose;

/// The secret from which a master derives the tokens of its puts, so that it need not
/// keep one for each. `Debug` shows none of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GrantSecret([u8; 16]);

/// Proves that its holder began the put, copy or move that it belongs to: only the
/// answer to the call that began it tells the token. `Debug` shows none of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PutToken(u64);

impl GrantSecret {
    /// Takes 16 bytes, drawn at random by the master.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The secret's bytes, for a journal that only the master can read.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The token of the put, copy or move with this number.
    ///
    /// ```
    /// use mc_ticket::GrantSecret;
    /// let secret = GrantSecret::from_bytes([7; 16]);
    /// assert_eq!(secret.token(1), secret.token(1));
    /// assert_ne!(secret.token(1), secret.token(2));
    /// ```
    #[must_use]
    pub fn token(&self, number: u64) -> PutToken {
        // Each put costs two of these: a message in one piece takes 13 ns, in several 26.
        let mut message = [Purpose::PutToken as u8; 9];
        message[..8].copy_from_slice(&number.to_le_bytes());
        PutToken(SipHasher24::new_with_key(&self.0).hash(&message))
    }
}

impl PutToken {
    /// The token with this number, as it came over the wire.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The token's number, for the wire.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for GrantSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantSecret(..)")
    }
}

impl fmt::Debug for PutToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PutToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_not_shown() {
        let [one, two] = [1, 2].map(|byte| GrantSecret::from_bytes([byte; 16]));
        assert_ne!(one.token(9), two.token(9));
        assert_eq!(format!("{one:?} {:?}", one.token(9)), "GrantSecret(..) PutToken(..)");
        assert_eq!(PutToken::from_u64(one.token(9).as_u64()), one.token(9));
    }
}
