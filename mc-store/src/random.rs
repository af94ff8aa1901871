//! Random numbers of the system.

/// Returns 128 random bits.
///
/// # Errors
/// When the system has no randomness.
pub(crate) fn random_u128() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(u128::from_ne_bytes(bytes))
}
