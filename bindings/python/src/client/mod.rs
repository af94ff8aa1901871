//! The Pythonic face: `Client` and `AsyncClient`.
